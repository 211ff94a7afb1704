"""The processes of one run: started by the fork server, each with a line to the engine, and all gone at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cloudpickle

from plesio.errors import ConfigurationError, words_of
from plesio.launch.job import Job
from plesio.launch.local.forker import Spawn
from plesio.launch.local.forkserver import PRELOAD, ForkServer
from plesio.launch.provenance import begun
from plesio.protocol import launcher
from plesio.transport.channel import Channel, channel_pair, close_quietly
from plesio.transport.memory import anonymous_file

SERVER, EVALUATOR, WORKER = PRELOAD


@dataclass(slots=True)
class Process:
    """A process of the run, and the launcher's line to it."""

    title: str
    pid: int
    channel: Channel[object]
    worker: int | None = None
    done: bool = False
    gone: bool = False

    def kill(self) -> None:
        """End it outright. It keeps its number until all of them have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _line(ours: contextlib.ExitStack) -> tuple[list[int], list[int]]:
    """A channel and two pipes between the server and one worker: its ends and theirs, which `ours` closes in this process."""
    server, worker = (ours.enter_context(end).fileno() for end in channel_pair())
    pipes: list[tuple[int, int]] = []
    for _ in ("push", "answer"):
        pipes.append(os.pipe())
        ours.callback(close_quietly, *pipes[-1])
    push, answer = pipes
    return [server, push[0], answer[1]], [worker, push[1], answer[0]]


@contextlib.contextmanager
def descriptors_for(workers: int) -> Iterator[None]:
    """Open file descriptors for so many workers inside.

    Raises:
        ConfigurationError: this process may not open that many.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise ConfigurationError(
            f"workers={workers} takes about {7 * workers + 8} file descriptors more than this process has open, and it "
            f"may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} in all (RLIMIT_NOFILE): raise the limit (ulimit "
            "-n in the shell), close files, or take fewer workers"
        ) from error


class Processes:
    """All processes of one run: the server first, then the workers by number, then the evaluator.

    Args:
        fork_server: what starts them.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.all: list[Process] = []

    @property
    def server(self) -> Process:
        """The server's."""
        return self.all[0]

    @property
    def workers(self) -> list[Process]:
        """The workers', by number."""
        return [process for process in self.all if process.worker is not None]

    def load(self, job: Job) -> None:
        """Send the training function to where they are started.

        Raises:
            ConfigurationError: it cannot be sent, or not be loaded where it arrives.
            SharedMemoryError: there is no room for what it refers to.
        """
        with _packed(job) as payload:
            self._fork_server.load(payload)

    def start(self, job: Job) -> None:
        """Start them all."""
        with contextlib.ExitStack() as ours:  # what is open here for others only
            lines = [_line(ours) for _ in range(job.config.workers)]
            to_evaluator = [ours.enter_context(end).fileno() for end in channel_pair()] if job.evaluate else []
            written = [begun(job, job.threads).detach()] if job.keeping.journal else []
            ours.callback(close_quietly, *written)
            ends = [*to_evaluator[:1], *written, *(end for line in lines for end in line[0])]
            self._spawn(Spawn(SERVER, "the server", ()), ends, launcher.FromServer)
            for worker, (_, own_ends) in enumerate(lines):
                order = Spawn(WORKER, f"worker {worker}", (worker, self.server.pid))
                self._spawn(order, own_ends, launcher.FromWorker, worker)
            for end in to_evaluator[1:]:
                self._spawn(Spawn(EVALUATOR, "the evaluator", ()), [end], launcher.FromEvaluator)

    def _spawn(self, order: Spawn, ends: Sequence[int], kinds: object, worker: int | None = None) -> None:
        mine, theirs = channel_pair()
        try:
            with theirs:
                pid = self._fork_server.spawn(order, [theirs.fileno(), *ends])
        except BaseException:
            mine.close()
            raise
        self.all.append(Process(order.title, pid, Channel(mine, kinds, order.title), worker))

    def end(self, grace_s: float) -> None:
        """Leave no process behind: close the lines, give them `grace_s`, kill."""
        for process in self.all:
            process.channel.close()
        self._fork_server.end(grace_s)


@contextlib.contextmanager
def _packed(job: Job) -> Iterator[int]:
    """The descriptor of a file in memory with the job. It holds all data that the training function refers to."""
    try:
        packed: bytes = cloudpickle.dumps(job)
    except Exception as error:
        raise ConfigurationError(
            f"the training function cannot be sent to another process: {words_of(error)}; open files, locks and CUDA tensors "
            "cannot travel: make them inside the function"
        ) from error
    with open(anonymous_file(len(packed), "what the training function refers to"), "wb") as file:
        file.write(packed)
        del packed
        file.seek(0)  # for the reader, too: the place in it is shared
        yield file.fileno()
