"""A head, its standbys and its workers, each on a host of its own that may die, stand still, or be cut off.

A host is a session of processes. All are forked, its fork server too, so that none imports torch anew and a run takes a few
seconds. Whoever waits here waits for what happened, and never for time to pass.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  (once for all that are forked: it takes as long to import as torch)

import plesio as ps
from plesio.config import RunConfig
from plesio.launch.job import Listening
from plesio.launch.local import forker, forkserver
from plesio.launch.local.listen import DoorSockets
from plesio.launch.remote import following
from plesio.launch.remote.find import addresses_in
from plesio.launch.standby.standby import Standby
from plesio.launch.start import start
from plesio.transport import secure
from support.reading import free_port
from support.remote import let_go_of_sockets

for module in forkserver.PRELOAD:
    importlib.import_module(module)
TOKEN = "a token of the tests, long enough"
WITHIN_S = 60.0
LOOPBACK = "127.0.0.1"


class Host:
    """One host: what `body` does in a process of its own, and all that this starts. It ends with status 0 unless that raises."""

    def __init__(self, name: str, folder: Path, body: Callable[[], None], enter: Callable[[], None]) -> None:
        self.name, self.folder = name, folder / name
        self.folder.mkdir()
        self._log = self.folder / "log"
        self._log.touch()
        self.code: int | None = None
        self.may_fail = self.killed = False
        self.pid = os.fork()
        if not self.pid:
            self._be(body, enter)

    def _be(self, body: Callable[[], None], enter: Callable[[], None]) -> None:
        code = 1
        try:
            os.setsid()
            log = os.open(self._log, os.O_WRONLY | os.O_APPEND)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            sys.stdout, sys.stderr = (os.fdopen(os.dup(log), "w", buffering=1) for _ in range(2))
            let_go_of_sockets()
            _as_usual()
            enter()
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    @property
    def log(self) -> str:
        return self._log.read_text()

    # Its end

    def processes(self) -> list[int]:
        """Those that live."""
        return [pid for pid, (session, state) in _sessions() if session == self.pid and state not in "ZX"]

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def freeze(self) -> None:
        """Stop all of it; also what is forked meanwhile."""
        for _ in range(3):
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """As if the power failed: nothing of it says a word."""
        self.may_fail = self.killed = True
        self.freeze()
        while self.processes():
            self._signal(signal.SIGKILL)
        self.end()

    def press_ctrl_c(self) -> None:
        os.kill(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        self.may_fail = True
        os.kill(self.pid, signal.SIGTERM)

    @property
    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def end(self, within_s: float = WITHIN_S) -> int:
        """Its exit status, or what killed it (below 0)."""
        end_s = time.monotonic() + within_s
        while not self.ended:
            assert time.monotonic() < end_s, f"{self.name} did not end within {within_s:g} s:\n{self.log[-3000:]}"
            time.sleep(0.01)
        assert self.code is not None
        return self.code


def _sessions() -> Iterator[tuple[int, tuple[int, str]]]:
    """Of each process: its session, and its state."""
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with suppress(OSError):
                fields = (one / "stat").read_text().rpartition(")")[2].split()
                yield int(one.name), (int(fields[3]), fields[0])


def _as_usual() -> None:
    """What a fresh process would have; and a fork server that is forked."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    warnings.simplefilter("default")
    warnings.showwarning = lambda message, *_: print(
        f"{message.__class__.__name__}: {message}", file=sys.stderr, flush=True
    )
    log = logging.getLogger("plesio")
    log.handlers[:] = [handler := logging.StreamHandler(sys.stderr)]
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%X"))
    log.setLevel(logging.DEBUG)
    log.propagate = False
    forkserver.another_python = _Forked  # type: ignore[assignment]


class _Forked:
    """In place of a `Popen`: the fork server, in a process that has torch."""

    def __init__(self, program: str, descriptor: int, *arguments: str, **_: object) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            try:
                sys.argv[1:] = arguments
                forker.main()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = WITHIN_S) -> int:
        end_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("the fork server", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def until(happened: Callable[[], object], told: Sequence[Host] = (), within_s: float = WITHIN_S) -> None:
    """Wait for that; in vain it says what these hosts said."""
    end_s = time.monotonic() + within_s
    while not happened():
        failed = [one.name for one in told if one.ended and one.code and not one.may_fail]
        if failed or time.monotonic() > end_s:
            logs = "\n".join(f"--- {one.name}\n{one.log[-3000:]}" for one in told)
            why = f"{' and '.join(failed)} failed" if failed else f"it did not come to that within {within_s:g} s"
            raise AssertionError(f"{why}:\n{logs}")
        time.sleep(0.01)


# Heads and standbys

NOTHING = {"name": 0, "electable": (), "voters": (), "term": 0, "number": 0, "head": 0}


class Leader(Host):
    """A head, or a standby. Of a standby, `state` is what the newest beat that it heard says."""

    address: str

    @property
    def done(self) -> ps.Run:
        """The run, which ended here."""
        return pickle.loads((self.folder / "run").read_bytes())  # type: ignore[no-any-return]

    @property
    def has_ended_the_run(self) -> bool:
        return (self.folder / "run").exists()

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def state(self) -> dict[str, Any]:
        file = self.folder / "state"
        state: dict[str, Any] = json.loads(file.read_text()) if file.exists() else NOTHING
        return state

    @property
    def beat(self) -> tuple[int, int]:
        """Of what term, and which one, that is."""
        return self.state["term"], self.state["number"]

    @property
    def leads(self) -> bool:
        """Whether it goes on as head, and workers are with it."""
        return "elected: this is the head now" in self.log and "training began" in self.log

    @property
    def copies(self) -> list[Path]:
        """Of the run, while it stands by."""
        return list(self.runs.glob("standby-*"))


def _listening(host: str, port: int) -> Listening:
    credentials = secure.credentials(None, True, host)
    return Listening(host=host, port=port, token=TOKEN, credentials=credentials, rejoin_s=60.0)


def _lead(folder: Path, config: RunConfig, door: DoorSockets) -> None:
    done = start(config, None, door=door)
    (folder / "run.new").write_bytes(pickle.dumps(done))
    (folder / "run.new").rename(folder / "run")


def _stand_by(folder: Path, places: Sequence[tuple[str, int]], every: int, door: DoorSockets) -> None:
    forkserver.ForkServer.shared()  # there are no threads yet
    standby = Standby(places, door, folder / "runs", every)
    threading.Thread(target=_tell, args=(standby, folder / "state"), daemon=True).start()
    promoted = standby.wait(WITHIN_S)
    if promoted is not None:
        _lead(folder, *promoted)


def _tell(standby: Standby, file: Path) -> None:
    """Write down what this standby knows, whenever that is something new."""
    contender, before = standby._contending._contender, ""
    while True:
        last = contender.voter.last
        state = {"name": contender.name, "electable": sorted(last.electable), "voters": sorted(last.voters)}
        state |= {"term": last.term, "number": last.number, "head": last.head}
        if (now := json.dumps(state)) != before:
            file.with_suffix(".new").write_text(now)
            file.with_suffix(".new").rename(file)
            before = now
        time.sleep(0.02)


# All together


class OverError(Exception):
    """The run ended before what was waited for."""


class Hosts:
    """Of one run. Its training function is one of `support.paced`, with the folder `seen`."""

    def __init__(self, folder: Path, strategy: Any, workers: int, **options: Any) -> None:
        self.folder, self.seen = folder, folder / "seen"
        self.seen.mkdir(parents=True)
        self._settings = {"strategy": strategy, "workers": workers, "standby": 1, **options}
        self.all: list[Host] = []
        self.leaders: list[Leader] = []
        self.workers: dict[int, Host] = {}
        self._names: dict[int, int] = {}  # by worker: the one that it votes by

    def _add(self, kind: type[Host], name: str, body: Callable[[Path], None], enter: Callable[[], None]) -> Any:
        name = f"{name}-{len(self.all)}"
        host = kind(name, self.folder, lambda: body(self.folder / name), enter)
        self.all.append(host)
        return host

    def _leader(
        self, name: str, body: Callable[[Path, DoorSockets], None], at: str, enter: Callable[[], None]
    ) -> Leader:
        port = free_port()

        def lead(folder: Path) -> None:
            body(folder, DoorSockets.open(_listening(at, port)))

        leader: Leader = self._add(Leader, name, lead, enter)
        leader.address = f"{at}:{port}"
        self.leaders.append(leader)
        return leader

    def head(self, at: str = LOOPBACK, enter: Callable[[], None] = lambda: None) -> Leader:
        """The first head, whose address there is `at`."""

        def lead(folder: Path, door: DoorSockets) -> None:
            _lead(folder, RunConfig(runs=folder / "runs", **self._settings), door)

        return self._leader("head", lead, at, enter)

    def standby(self, at: str = LOOPBACK, enter: Callable[[], None] = lambda: None, every: int = 0) -> Leader:
        """A standby, which knows where all are who lead or led; of a version `every` so many."""
        places = addresses_in(",".join(one.address for one in self.leaders))
        return self._leader("standby", lambda folder, door: _stand_by(folder, places, every, door), at, enter)

    def worker(self, train: Callable[..., object], rank: int, enter: Callable[[], None] = lambda: None) -> Host:
        """A worker for that seat, which begins where the newest of those who lead is."""
        name, address = secrets.randbits(62), "tcp://" + ",".join(one.address for one in reversed(self.leaders))

        def work(_: Path) -> None:
            following.new_name = lambda: name  # type: ignore[attr-defined]
            with ps.join(address=address, token=TOKEN, rank=rank, insecure=True) as worker:
                train(worker)

        host: Host = self._add(Host, f"worker{rank}", work, enter)
        self.workers[rank], self._names[rank] = host, name
        return host

    # What to wait for

    def until(self, happened: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Raises `OverError` if the run ends before."""
        until(lambda: happened() or self.over, self.all, within_s)
        if not happened():
            raise OverError

    @property
    def over(self) -> bool:
        """Whether the run has ended well."""
        return any(one.has_ended_the_run for one in self.leaders)

    def until_says(self, host: Host, words: str) -> None:
        until(lambda: words in host.log or host.ended, self.all)
        assert words in host.log, f"{host.name} ended, and said {host.log}"

    def voters(self, standby: Leader) -> dict[Host | None, int]:
        """Who votes, by what this standby heard last; None is the head."""
        state = standby.state
        live: dict[Host | None, int] = {
            host: self._names[rank] for rank, host in self.workers.items() if not host.ended
        }
        live |= {standby: state["name"], None: state["head"]}
        return {host: name for host, name in live.items() if name in state["voters"]}

    def survives(self, standby: Leader) -> bool:
        """Whether the run would survive a death: all who live vote, and nobody else, and this standby may be elected. While
        voters change, by one at a time, they are even."""
        state = standby.state
        live = {self._names[rank] for rank, host in self.workers.items() if not host.ended} | {state["name"]}
        voters = set(state["voters"])
        all_vote = live <= voters <= live | {state["head"]} and len(voters) % 2 == 1
        return all_vote and state["name"] in state["electable"]

    def until_electable(self, standby: Leader) -> None:
        self.until(lambda: self.survives(standby))

    def saw(self, rank: int) -> list[tuple[int, str]]:
        """The versions that this worker saw, in order, each with a digest of its weights."""
        file = self.seen / f"{self.workers[rank].pid}"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines if line.endswith("\n")]

    @property
    def version(self) -> int:
        """The newest that a worker saw last."""
        return max((saw[-1][0] for rank in self.workers if (saw := self.saw(rank))), default=0)

    def until_further(self, by: int = 1) -> None:
        """Each worker that lives takes so many more steps."""
        before = {rank: len(self.saw(rank)) for rank in self.workers}
        self.until(
            lambda: all(len(self.saw(rank)) >= had + by or self.workers[rank].ended for rank, had in before.items())
        )

    def end(self) -> None:
        for host in self.all:
            if not host.ended:
                host.kill()


@contextmanager
def hosts(folder: Path, strategy: Any, workers: int, **options: Any) -> Iterator[Hosts]:
    """All of them end here."""
    ours = Hosts(folder, strategy, workers, **options)
    try:
        yield ours
    finally:
        ours.end()
