"""Where the user's functions run: what they raise, and the processes that they start (a DataLoader's, a pool's)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from plesio.errors import is_own, traceback_of, words_of
from plesio.launch.local.forker import die_with_parent
from plesio.protocol.launcher import Failed
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly
from plesio.transport.island_group import broke

CHILD_S = 0.2  # how long after a line broke torch may take to raise for the process at its other end
GROUP_S = 1.0  # how long the end of another rank may take to be told
PATIENCE_S = 5.0  # how long processes that are no daemons have to end by themselves


def keep_to_itself(descriptors: list[int], *channels: Channel[Any]) -> Callable[[], None]:
    """Close this process's lines in what it forks: an open copy would hide this process's death from the others. Returns what
    closes them here.

    What its main thread forks also dies with it. What another thread forks does not: to the kernel, that thread is the parent.
    """

    pipes, mine, dies = descriptors[len(channels) :], os.getpid(), False

    def look_who_forks() -> None:
        nonlocal dies
        dies = os.getpid() == mine and threading.current_thread() is threading.main_thread()

    def hang_up() -> None:
        for channel in channels:
            channel.close()
        close_quietly(*pipes)
        pipes.clear()  # from now on other files may have these numbers

    def let_go() -> None:
        if dies:
            die_with_parent(mine)
        hang_up()

    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    os.register_at_fork(before=look_who_forks, after_in_child=let_go)
    return hang_up


@contextmanager
def reported_to(engine: Channel[object], in_group: bool = False) -> Iterator[None]:
    """Inside, a user's function runs: what it raises is told the engine, and the processes that it started end with it.

    `in_group`: with others it is one worker. Where one of those ends, collectives fail in the rest: then its end is the reason,
    and is told first. The engine ends this process meanwhile.
    """
    try:
        yield
    except ChannelClosedError:
        pass  # the server or the engine is gone: nobody is left to tell
    except BaseException as error:
        if in_group and broke(error):
            time.sleep(GROUP_S)
        why = _words_of(error)  # first: it removes torch's handler, which could raise anywhere below
        with suppress(ChannelClosedError):  # the engine may have given the run up
            engine.send(Failed(type(error).__name__, why, traceback_of(error), is_own(error)))
        raise SystemExit(1) from None
    finally:
        _end_children()


def _words_of(error: BaseException) -> str:
    """The message; for a broken line also what torch says of it, if a DataLoader's process ended."""
    why = ""
    try:
        if isinstance(error, (ConnectionError, EOFError)):
            time.sleep(CHILD_S)
    except RuntimeError as failure:
        why = f"; {failure}"
    _ignore_children()
    return f"{words_of(error)}{why}"


def _ignore_children() -> None:
    """Remove torch's handler of SIGCHLD, which raises anywhere in this process when a DataLoader's process failed."""
    while True:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
        except Exception:  # it raised just now
            continue


def _end_children() -> None:
    """End child processes as multiprocessing does at exit. This process leaves by `os._exit`, which skips that."""
    _ignore_children()  # torch's handler would take their end for a failure
    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
    end_s = time.monotonic() + PATIENCE_S
    for child in multiprocessing.active_children():
        child.join(max(0.0, end_s - time.monotonic()))
        child.kill()  # one of a pool that nobody shut down waits for work for ever
