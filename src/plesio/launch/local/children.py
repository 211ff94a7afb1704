"""The processes that a user's function forks or starts (a DataLoader's, a pool's) in a process of the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

from plesio.launch.local.forker import die_with_parent
from plesio.transport.channel import Channel, close_quietly

PATIENCE_S = 5.0
"""How long processes that are no daemons have to end by themselves."""


def keep_to_itself(descriptors: list[int], *channels: Channel[Any]) -> None:
    """They get no end of our lines: while one lived, nobody would see the end of the file that our death is told by.

    And what this process forks dies with it. A DataLoader's does that by itself, but only once it is set up; and none of what
    another thread forked: to the kernel, a thread is what it was started by.
    """

    pipes, mine, dies = descriptors[len(channels) :], os.getpid(), False

    def look_who_forks() -> None:
        nonlocal dies
        dies = os.getpid() == mine and threading.current_thread() is threading.main_thread()

    def let_go() -> None:
        if dies:
            die_with_parent(mine)
        for channel in channels:
            channel.close()
        close_quietly(*pipes)
        pipes.clear()  # in a child's child their numbers may be those of something else

    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    os.register_at_fork(before=look_who_forks, after_in_child=let_go)


def ignore_children() -> None:
    """Take away torch's handler of SIGCHLD, which raises when a DataLoader's process failed, wherever this one is then."""
    while True:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
        except Exception:  # one came just now: it has raised, and need not again
            continue


def end_children() -> None:
    """What multiprocessing does at the end of a process, which ours does not get to: else a DataLoader's would linger."""
    ignore_children()  # torch's handler takes the end of a DataLoader's for a failure
    for child in multiprocessing.active_children():
        if child.daemon:
            child.terminate()
    end_s = time.monotonic() + PATIENCE_S
    for child in multiprocessing.active_children():
        child.join(max(0.0, end_s - time.monotonic()))
        child.kill()  # one that waits for work for ever, as of a pool that nobody shut down, would keep the run
