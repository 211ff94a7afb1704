"""Runs whose workers join from other processes, over TCP or beside the server; forked, so that none imports torch anew."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import plesio as ps
from plesio.cli.main import main
from plesio.config import RunConfig
from plesio.launch.job import Listening
from plesio.launch.local.forkserver import ForkServer
from plesio.launch.local.listen import DoorSockets
from plesio.launch.start import start
from plesio.transport import secure

TOKEN = "a token of the tests, long enough"
END_S = 20.0


class Head:
    """Where to join, and the processes that do."""

    def __init__(self, door: DoorSockets, far: bool) -> None:
        scheme = "tcp://" if far else ""
        self.port = door.listening.port
        self.address = f"{scheme}{door.listening.host}:{self.port}"
        self.pids: list[int] = []
        self._door = door
        self.warned = ""
        """What workers warned of and raised, once all have ended."""
        self._warned = tempfile.TemporaryFile("w+")  # noqa: SIM115

    def warnings(self) -> str:
        self._warned.seek(0)
        return self._warned.read()

    def fork(
        self,
        train: Callable[..., object],
        after_s: float = 0.0,
        enter: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> int:
        """A process that becomes a worker; `enter` is done first."""

        def work() -> None:
            with ps.join(**{"address": self.address, "token": TOKEN, **options}) as worker:
                train(worker)

        return self._fork(work, after_s, enter)

    def fork_server(self, enter: Callable[[], None] = lambda: None, **options: Any) -> int:
        """A process that becomes a table server; `enter` is done first."""
        return self._fork(lambda: ps.join_server(**{"address": self.address, "token": TOKEN, **options}), 0.0, enter)

    def fork_command(self, *arguments: str) -> int:
        """A process that is `plesio join` for this head, with `arguments`."""

        def work() -> None:
            os.environ["PLESIO_TOKEN"] = TOKEN
            assert main(["join", self.address, *arguments]) == 0

        return self._fork(work)

    def _fork(self, body: Callable[[], None], after_s: float = 0.0, enter: Callable[[], None] = lambda: None) -> int:
        pid = os.fork()
        if pid:
            self.pids.append(pid)
            return pid
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            let_go_of_sockets()
            time.sleep(after_s)
            enter()
            faulthandler.register(signal.SIGUSR1, self._warned)
            warnings.simplefilter("default")
            warnings.showwarning = lambda message, *_: print(message, file=self._warned, flush=True)
            body()
            code = 0
        except BaseException:
            traceback.print_exc(file=self._warned)
            self._warned.flush()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def run(self, strategy: Any, workers: int, evaluate: Any = None, watch: Any = None, **options: Any) -> ps.Run:
        """The run that they join, in this process."""
        on_round = options.pop("on_round", None)
        config = RunConfig(strategy=strategy, workers=workers, **options)
        return start(config, None, evaluate, watch, door=self._door, on_round=on_round)

    def server_pid(self) -> int:
        """The server process of the run that is under way."""
        children = Path(f"/proc/{ForkServer.shared().pid}/task/{ForkServer.shared().pid}/children").read_text().split()
        return int(children[0])  # the first that was forked

    def reopen(self) -> None:
        """Listen again, where the last run did."""
        self._door = DoorSockets.open(self._door.listening)

    def close(self) -> None:
        """Listen no more."""
        for listening in self._door.sockets:
            listening.close()

    def end(self) -> list[int]:
        """The exit codes of all workers, or what killed them. Those that do not end in time say where they are, and are
        killed."""
        codes = []
        for pid in self.pids:
            late = [
                threading.Timer(END_S - early_s, os.kill, (pid, one))
                for early_s, one in ((1.0, signal.SIGUSR1), (0.0, signal.SIGKILL))
            ]
            for timer in late:
                timer.start()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            for timer in late:
                timer.cancel()
        self.pids.clear()
        if -signal.SIGKILL in codes:
            print(self.warnings(), file=sys.stderr)
        return codes


def let_go_of_sockets() -> None:
    """In a process that was forked: its copy of a socket would keep a connection open that a test cuts."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing
            if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.dup2(nowhere, int(name), inheritable=False)  # it stays taken: Python may still close it
    os.close(nowhere)


@contextmanager
def head(
    far: bool = True,
    rejoin_s: float = 10.0,
    certs: Path | None = None,
    host: str = "127.0.0.1",
    insecure: bool = False,
    servers_join: int = 0,
    port: int = 0,
) -> Iterator[Head]:
    """Where workers can join a run that is still to start: `Head.run` does that."""
    credentials = secure.credentials(certs, insecure, host)
    listening = Listening(
        host=host, port=port, token=TOKEN, credentials=credentials, rejoin_s=rejoin_s, servers_join=servers_join
    )
    one = Head(DoorSockets.open(listening), far)
    try:
        yield one
    finally:
        one.warned = one.warnings()
        one._warned.close()
        one.close()
        for pid in one.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run(
    train: Callable[..., object],
    strategy: Any,
    workers: int = 1,
    *,
    far: bool = True,
    evaluate: Any = None,
    **options: Any,
) -> ps.Run:
    """As `ps.run`, but the workers join it."""
    with head(far) as door:
        for rank in range(workers):
            door.fork(train, rank=rank)
        done = door.run(strategy, workers, evaluate, **options)
        assert door.end() == [0] * workers
    return done
