"""The engine for one host: starts a server, an evaluator and the workers, and sees that all of them end.

It is the user's own process. It has no thread; one loop polls every process's line. Whatever ends first (all workers, a target,
a budget, an error, Ctrl-C), the others are asked to end, given a moment, and then killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import cloudpickle
import msgspec
import torch

from plesio.engine.assembly import arenas
from plesio.engine.evaluator import EvaluatorConfig
from plesio.engine.forkserver import PRELOAD, ForkServer
from plesio.engine.messages import (
    Begun,
    Evaluated,
    Failed,
    Final,
    Finished,
    Logged,
    Progress,
    Stop,
    ToEngineFromEvaluator,
    ToEngineFromServer,
    ToEngineFromWorker,
    Trouble,
)
from plesio.engine.server import ServerConfig
from plesio.errors import (
    ConfigurationError,
    DeadlineError,
    NonFiniteError,
    PlesioError,
    ServerLostError,
    WorkerError,
    WorkerLostError,
)
from plesio.fabric.channel import Channel, ChannelClosedError, channel_pair, close_quietly
from plesio.fabric.memory import SharedBlock
from plesio.faults import Fault, Kill, Pace, slowness
from plesio.observe.summary import Evaluation, Incident
from plesio.observe.summary import Logged as LoggedMean
from plesio.strategy import Strategy
from plesio.tensors.arena import Layout

ENTRY_SERVER = "plesio.engine.server:main"
ENTRY_EVALUATOR = "plesio.engine.evaluator:main"
ENTRY_WORKER = "plesio.worker:main"
WORKERS_MAX = 80
"""What the descriptors of their lines leave room for in one message."""
GRACE_S = 3.0
"""How long processes that were asked to end may take before they are killed."""
_runs = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an engine is to run."""

    train: Callable[..., object]
    strategy: Strategy
    workers: int
    seed: int
    stealing: bool
    evaluate: Callable[..., object] | None
    evaluate_every_s: float
    faults: tuple[Fault, ...]
    pace: Pace | None
    timeout_s: float
    continue_on_worker_error: bool
    raise_on_nonfinite: bool


@dataclass(slots=True)
class Outcome:
    """What an engine brings back."""

    final: Final | None = None
    state_dict: dict[str, torch.Tensor] = field(default_factory=dict)
    history: list[Evaluation] = field(default_factory=list)
    logged: list[LoggedMean] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    start_up_s: float = 0.0
    ended: str = "finished"


@dataclass(slots=True)
class Live:
    """How the run stands, for whoever watches it: times in seconds since training began, -1 before."""

    time_s: float = -1.0
    version: int = 0
    steps: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


Watch = Callable[[Live], str | None]
"""Called as the run goes; says why it is to stop, if it is."""


@dataclass(slots=True)
class _Process:
    """A process this engine started, and its line."""

    title: str
    pid: int
    channel: Channel[object]
    worker: int | None = None
    done: bool = False
    code: int | None = None


class LocalEngine:
    """Runs one job on this host.

    Raises:
        PlesioError: see `run`.
    """

    def __init__(self, job: Job, watch: Watch) -> None:
        self._job = job
        self._watch = watch
        self._run = next(_runs)
        self._outcome = Outcome()
        self._live = Live()
        self._processes: list[_Process] = []
        self._error: PlesioError | None = None
        self._zero_s: float | None = None
        self._started_s = time.monotonic()
        self._stop_sent_s: float | None = None
        self._interrupts = 0
        self._kills = sorted((f for f in job.faults if isinstance(f, Kill)), key=lambda kill: kill.after_s)
        self._final_judged = job.evaluate is None
        self._ring_descriptor: int | None = None

    def run(self) -> Outcome:
        """Start everything, wait until it is over, clean up.

        Raises:
            WorkerError: a training function raised.
            WorkerLostError: every worker died.
            ServerLostError: the server died.
            PlesioError: what else a worker or the server refused to go on with.
            KeyboardInterrupt: Ctrl-C, after a graceful end.
        """
        fork_server = ForkServer.shared(PRELOAD)
        before = signal.getsignal(signal.SIGINT)
        in_main = before is not None and _in_main_thread()
        if in_main:
            signal.signal(signal.SIGINT, self._interrupted)
        try:
            fork_server.load(self._run, self._payload())
            self._start(fork_server)
            self._loop(fork_server)
        finally:
            self._end(fork_server)
            if in_main:
                signal.signal(signal.SIGINT, before)
        if self._interrupts:
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error
        return self._outcome

    def _interrupted(self, *_: object) -> None:
        """Ctrl-C: end gracefully; the second time, at once."""
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt

    # Starting

    def _payload(self) -> bytes:
        job = self._job
        try:
            return bytes(cloudpickle.dumps({"train": job.train, "evaluate": job.evaluate, "strategy": job.strategy}))
        except Exception as error:
            raise ConfigurationError(
                f"the training function cannot be sent to another process: {error}; open files, locks and CUDA tensors "
                "cannot travel: make them inside the function"
            ) from error

    def _start(self, fork_server: ForkServer) -> None:
        job = self._job
        threads = max(1, (os.cpu_count() or 1) // (job.workers + 1))
        lines = [_WorkerLine.open() for _ in range(job.workers)]
        to_evaluator = channel_pair() if job.evaluate else None
        try:
            server_ends = [end for line in lines for end in line.server_ends]
            if to_evaluator is not None:
                server_ends.insert(0, to_evaluator[0].fileno())
            server = self._spawn(
                fork_server,
                ENTRY_SERVER,
                "the server",
                ServerConfig(
                    job.workers, job.evaluate is not None, job.stealing, job.timeout_s, job.raise_on_nonfinite, threads
                ),
                server_ends,
                ToEngineFromServer,
            )
            for worker, line in enumerate(lines):
                process = self._spawn(
                    fork_server,
                    ENTRY_WORKER,
                    f"worker {worker}",
                    self._worker_settings(worker, server.pid, threads),
                    line.worker_ends,
                    ToEngineFromWorker,
                )
                process.worker = worker
            if to_evaluator is not None:
                self._spawn(
                    fork_server,
                    ENTRY_EVALUATOR,
                    "the evaluator",
                    EvaluatorConfig(job.evaluate_every_s, 1),
                    [to_evaluator[1].fileno()],
                    ToEngineFromEvaluator,
                )
        finally:
            for line in lines:
                close_quietly(*line.server_ends, *line.worker_ends)
            for end in to_evaluator or ():
                end.close()

    def _worker_settings(self, worker: int, server_pid: int, threads: int) -> dict[str, object]:
        job = self._job
        return {
            "worker": worker,
            "incarnation": 1,
            "workers": job.workers,
            "seed": job.seed,
            "evaluates": job.evaluate is not None,
            "timeout_s": job.timeout_s,
            "threads": threads,
            "server_pid": server_pid,
            "pace_s": job.pace.step_s if job.pace else None,
            "jitter": job.pace.jitter if job.pace else 0.0,
            "slow": slowness(job.faults, worker),
        }

    def _spawn(
        self,
        fork_server: ForkServer,
        entry: str,
        title: str,
        settings: object,
        ends: Sequence[int],
        kinds: object,
    ) -> _Process:
        mine, theirs = channel_pair()
        with theirs:
            pid = fork_server.spawn(self._run, entry, title, msgspec.msgpack.encode(settings), [theirs.fileno(), *ends])
        process = _Process(title, pid, Channel(mine, kinds, title))
        self._processes.append(process)
        return process

    # While it runs

    @property
    def _server(self) -> _Process:
        return self._processes[0]

    def _workers(self) -> list[_Process]:
        return [process for process in self._processes if process.worker is not None]

    def _loop(self, fork_server: ForkServer) -> None:
        poller = select.poll()
        for process in self._processes:
            poller.register(process.channel.fileno(), select.POLLIN)
        poller.register(fork_server.fileno(), select.POLLIN)
        by_descriptor = {process.channel.fileno(): process for process in self._processes}
        while not self._over():
            for descriptor, _ in poller.poll(50):
                if descriptor == fork_server.fileno():
                    self._note_exits(fork_server)
                    continue
                process = by_descriptor[descriptor]
                if not self._hear(process):
                    poller.unregister(descriptor)
            self._supervise()

    def _over(self) -> bool:
        if self._error is not None:
            return True
        if self._interrupts and self._stop_sent_s is None:
            self._ask_to_stop("interrupted")
        if self._outcome.final is not None:
            return self._final_judged or self._late(GRACE_S * 10)
        return False

    def _late(self, allowed_s: float) -> bool:
        """Whether a stop was asked for more than `allowed_s` ago."""
        return self._stop_sent_s is not None and time.monotonic() - self._stop_sent_s > allowed_s

    def _hear(self, process: _Process) -> bool:
        """Take one message; False when the line is closed."""
        try:
            message, descriptors = process.channel.receive(self._job.timeout_s)
        except ChannelClosedError:
            self._hung_up(process)
            return False
        if isinstance(message, Logged):
            self._logged(process, message)
        elif isinstance(message, Progress):
            live = self._live
            live.time_s, live.version, live.steps, live.samples = (
                message.time_s,
                message.version,
                message.steps,
                message.samples,
            )
        elif isinstance(message, Evaluated):
            self._evaluated(message)
        elif isinstance(message, Finished):
            process.done = True
        elif isinstance(message, Failed):
            self._failed(process, message)
        elif isinstance(message, Begun):
            self._zero_s = message.zero_s
            self._outcome.start_up_s = message.zero_s - self._started_s
            self._live.time_s = 0.0
        elif isinstance(message, Trouble):
            self._outcome.incidents.append(message.incident)
            if message.fatal:
                self._error = self._error or NonFiniteError(message.fatal)
        elif isinstance(message, Final):
            self._final(message, descriptors)
        return True

    def _logged(self, process: _Process, message: Logged) -> None:
        assert process.worker is not None
        if self._zero_s is not None:
            time_s = message.monotonic_s - self._zero_s
            self._outcome.logged.append(LoggedMean(time_s, process.worker, message.steps, message.metrics))

    def _evaluated(self, message: Evaluated) -> None:
        self._outcome.history.append(Evaluation(message.time_s, message.version, message.samples, message.metrics))
        self._live.metrics = message.metrics
        self._final_judged = self._final_judged or message.final

    def _failed(self, process: _Process, message: Failed) -> None:
        process.done = True
        if process.worker is None:
            self._error = self._error or PlesioError(f"evaluate raised {message.kind}:\n{message.traceback}")
        elif message.kind == "ServerLostError":
            pass  # the server's own end tells it once, for all
        elif self._job.continue_on_worker_error and self._zero_s is not None:
            what = f"worker {process.worker} raised {message.kind}: {message.why}; the others go on"
            self._outcome.incidents.append(Incident(self._live.time_s, process.worker, what))
        else:
            self._error = self._error or _worker_error(process.worker, message)

    def _hung_up(self, process: _Process) -> None:
        if process is self._server and self._outcome.final is None:
            self._error = self._error or ServerLostError(
                f"the server process ({process.pid}) died at version {self._live.version}, "
                f"{max(self._live.time_s, 0.0):.1f} s into training; the weights were in its memory and are lost; "
                "its own messages, if it left any, are above"
            )
        elif process.title == "the evaluator":
            self._final_judged = True
        process.done = True

    def _supervise(self) -> None:
        """What is due by time: faults, targets, and the end of those who were asked to end."""
        live = self._live
        if self._zero_s is not None:
            while self._kills and time.monotonic() - self._zero_s >= self._kills[0].after_s:
                self._kill(self._kills.pop(0))
            reason = self._watch(live)
            if reason is not None and self._stop_sent_s is None:
                self._ask_to_stop(reason)
        elif time.monotonic() - self._started_s > self._job.timeout_s:
            self._error = DeadlineError(
                f"training did not begin within {self._job.timeout_s:g} s: some worker did not get as far as prepare"
            )
        if self._stop_sent_s is not None and self._late(GRACE_S):
            for process in self._workers():
                if not process.done:
                    _kill(process.pid)

    def _kill(self, fault: Kill) -> None:
        victim = self._server if fault.worker is None else self._workers()[fault.worker]
        _kill(victim.pid)

    def _ask_to_stop(self, reason: str) -> None:
        self._stop_sent_s = time.monotonic()
        self._outcome.ended = reason
        with contextlib.suppress(ChannelClosedError):
            self._server.channel.send(Stop())

    def _note_exits(self, fork_server: ForkServer) -> None:
        exits = fork_server.poll_exits()
        for process in self._processes:
            process.code = exits.get(process.pid, process.code)

    def _final(self, message: Final, descriptors: list[int]) -> None:
        """Take the weights over; the server may go."""
        self._outcome.final = message
        if message.model is None:
            died = sum(one.left == "died" for one in message.workers)
            if died == len(message.workers) and self._error is None:
                self._error = WorkerLostError(f"all {died} workers died before training began")
            return
        layout = Layout(message.model.specs)
        block = SharedBlock.attach(descriptors[0], layout.nbytes * message.buffers)
        views = arenas(block, layout, message.buffers)[message.buffer].views
        kept = [view.clone() for view in views]
        self._outcome.state_dict = {name: kept[index] for name, index in message.model.names}
        block.close()
        if all(one.left == "died" for one in message.workers) and self._stop_sent_s is None:
            self._error = self._error or WorkerLostError(
                f"every worker died; the last at version {message.version}, {message.wall_s:.1f} s into training"
            )
        elif message.lost:
            self._error = self._error or WorkerLostError(message.lost)

    # Ending

    def _end(self, fork_server: ForkServer) -> None:
        """Nobody is left behind: close the lines, give a moment, kill."""
        for process in self._processes:
            process.channel.close()
        deadline_s = time.monotonic() + (0.0 if self._error or self._interrupts > 1 else GRACE_S)
        while any(process.code is None for process in self._processes):
            with contextlib.suppress(PlesioError):
                self._note_exits(fork_server)
            if time.monotonic() >= deadline_s:
                for process in self._processes:
                    if process.code is None:
                        _kill(process.pid)
                deadline_s = time.monotonic() + GRACE_S
            time.sleep(0.002)
        fork_server.drop(self._run)


@dataclass(frozen=True, slots=True)
class _WorkerLine:
    """The descriptors between one worker and the server: a channel and two pipes."""

    server_ends: tuple[int, int, int]
    worker_ends: tuple[int, int, int]

    @classmethod
    def open(cls) -> _WorkerLine:
        """New ones."""
        server, worker = channel_pair()
        push_read, push_write = os.pipe()
        answer_read, answer_write = os.pipe()
        return cls((server.detach(), push_read, answer_write), (worker.detach(), push_write, answer_read))


def _worker_error(worker: int, message: Failed) -> PlesioError:
    """What a worker's exception means for the run: plesio's own keep their class, anything else is the user's."""
    from plesio import errors

    kind = getattr(errors, message.kind, None)
    if isinstance(kind, type) and issubclass(kind, PlesioError):
        return kind(message.why)
    return WorkerError(f"worker {worker} raised {message.kind}: {message.why}\n{message.traceback}")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _in_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
