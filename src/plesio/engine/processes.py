"""The processes of one run: started by the fork server, each with a line to the engine, and all gone at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import msgspec

from plesio.engine.evaluator import EvaluatorConfig
from plesio.engine.forkserver import ForkServer
from plesio.engine.job import Job
from plesio.engine.messages import ToEngineFromEvaluator, ToEngineFromServer, ToEngineFromWorker
from plesio.engine.recording import head_of
from plesio.engine.server import ServerConfig
from plesio.errors import ConfigurationError, PlesioError
from plesio.fabric.channel import Channel, channel_pair, close_quietly
from plesio.faults import slowness
from plesio.journal import JournalHead, JournalWriter

ENTRY_SERVER = "plesio.engine.server:main"
ENTRY_EVALUATOR = "plesio.engine.evaluator:main"
ENTRY_WORKER = "plesio.worker_process:main"
KILL_S = 3.0
"""How long a killed process may take to be gone before it is killed again."""


@dataclass(slots=True)
class Process:
    """A process of the run, and the engine's line to it. `code` is its exit code, once it is gone."""

    title: str
    pid: int
    channel: Channel[object]
    worker: int | None = None
    done: bool = False
    code: int | None = None

    def kill(self) -> None:
        """End it outright, unless it is gone: its number may be another process's by now."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """The descriptors between one worker and the server: a channel and two pipes."""

    server_ends: tuple[int, int, int]
    worker_ends: tuple[int, int, int]

    @classmethod
    def open(cls) -> WorkerLine:
        """New ones."""
        server, worker = channel_pair()
        push_read, push_write = os.pipe()
        answer_read, answer_write = os.pipe()
        return cls((server.detach(), push_read, answer_write), (worker.detach(), push_write, answer_read))


class Processes:
    """All processes of one run: the server first, then the workers by number, then the evaluator.

    Args:
        fork_server: what starts them.
        run: the run's number at the fork server.
    """

    def __init__(self, fork_server: ForkServer, run: int) -> None:
        self._fork_server = fork_server
        self._run = run
        self.all: list[Process] = []

    @property
    def server(self) -> Process:
        """The server's."""
        return self.all[0]

    @property
    def workers(self) -> list[Process]:
        """The workers', by number."""
        return [process for process in self.all if process.worker is not None]

    def start(self, job: Job) -> None:
        """Start them all.

        Raises:
            ConfigurationError: the training function cannot be sent, or not be loaded where it arrives.
        """
        self._fork_server.load(self._run, _payload(job))
        threads = max(1, (os.cpu_count() or 1) // (job.workers + 1))
        lines = [WorkerLine.open() for _ in range(job.workers)]
        to_evaluator = channel_pair() if job.evaluate else ()
        written = () if job.journal is None else (_begun(job.journal, head_of(job, threads)),)
        try:
            ends = [*(end.fileno() for end in to_evaluator[:1]), *written]
            ends += [end for line in lines for end in line.server_ends]
            settings = _server_settings(job, threads)
            server = self._spawn(ENTRY_SERVER, "the server", settings, ends, ToEngineFromServer)
            for worker, line in enumerate(lines):
                told = _worker_settings(job, worker, server.pid, threads)
                process = self._spawn(ENTRY_WORKER, f"worker {worker}", told, line.worker_ends, ToEngineFromWorker)
                process.worker = worker
            for end in to_evaluator[1:]:
                judging = EvaluatorConfig(job.evaluate_every_s, 1)
                self._spawn(ENTRY_EVALUATOR, "the evaluator", judging, [end.fileno()], ToEngineFromEvaluator)
        finally:
            for line in lines:
                close_quietly(*line.server_ends, *line.worker_ends)
            close_quietly(*written)
            for end in to_evaluator:
                end.close()

    def _spawn(self, entry: str, title: str, settings: object, ends: Sequence[int], kinds: object) -> Process:
        mine, theirs = channel_pair()
        with theirs:
            arguments = msgspec.msgpack.encode(settings)
            pid = self._fork_server.spawn(self._run, entry, title, arguments, [theirs.fileno(), *ends])
        process = Process(title, pid, Channel(mine, kinds, title))
        self.all.append(process)
        return process

    def note_exits(self) -> None:
        """Learn which of them are gone."""
        exits = self._fork_server.poll_exits()
        for process in self.all:
            process.code = exits.get(process.pid, process.code)

    def end(self, grace_s: float) -> None:
        """Nobody is left behind: close the lines, give them `grace_s`, kill."""
        for process in self.all:
            process.channel.close()
        deadline_s = time.monotonic() + grace_s
        while any(process.code is None for process in self.all):
            with contextlib.suppress(PlesioError):
                self.note_exits()
            if time.monotonic() >= deadline_s:
                for process in self.all:
                    process.kill()
                deadline_s = time.monotonic() + KILL_S
            time.sleep(0.002)
        self._fork_server.drop(self._run)


def _payload(job: Job) -> bytes:
    try:
        return bytes(cloudpickle.dumps({"train": job.train, "evaluate": job.evaluate, "strategy": job.strategy}))
    except Exception as error:
        raise ConfigurationError(
            f"the training function cannot be sent to another process: {error}; open files, locks and CUDA tensors "
            "cannot travel: make them inside the function"
        ) from error


def _begun(journal: Path, head: JournalHead) -> int:
    """The descriptor of a journal that is begun, or there already."""
    writer = JournalWriter.resume(journal) if journal.exists() else JournalWriter(journal, head)
    return writer.detach()


def _server_settings(job: Job, threads: int) -> ServerConfig:
    return ServerConfig(
        workers=job.workers,
        evaluates=job.evaluate is not None,
        journals=job.journal is not None,
        stealing=job.stealing,
        timeout_s=job.timeout_s,
        raise_on_nonfinite=job.raise_on_nonfinite,
        threads=threads,
        incarnation=job.incarnation,
        keeping=job.keeping,
    )


def _worker_settings(job: Job, worker: int, server_pid: int, threads: int) -> dict[str, object]:
    """What `plesio.worker_process.WorkerConfig` decodes there."""
    return {
        "worker": worker,
        "incarnation": job.incarnation,
        "workers": job.workers,
        "seed": job.seed,
        "evaluates": job.evaluate is not None,
        "timeout_s": 2 * job.timeout_s,  # the server notices first, and knows who is waited for
        "threads": threads,
        "server_pid": server_pid,
        "pace_s": job.pace.step_s if job.pace else None,
        "jitter": job.pace.jitter if job.pace else 0.0,
        "slow": slowness(job.faults, worker),
    }
