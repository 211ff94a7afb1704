"""The processes of one run: started by the fork server, each with a line to the engine, and all gone at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from plesio.errors import ConfigurationError, words_of
from plesio.launch.job import Job
from plesio.launch.journal import begun
from plesio.launch.local.forker import Spawn
from plesio.launch.local.forkserver import PRELOAD, ForkServer
from plesio.launch.local.output import named
from plesio.launch.local.unpicklable import culprit
from plesio.protocol import launcher, reading, remote
from plesio.system.memory import anonymous_file
from plesio.system.pickled import dumps
from plesio.transport.channel import Channel, ChannelClosedError, channel_pair, close_quietly

SERVER, EVALUATOR, WORKER, DOOR, PROXY, TABLE_SERVER = PRELOAD
READERS = "plesio.launch.local.readers_process"
"""Imported by itself: it takes the kernels of tables."""

EVALUATOR_TITLE = "the evaluator"
TABLE_SERVER_TITLE = "table server "
READERS_TITLE = "the readers' process"
HEADS, HEADS_TITLE = "plesio.launch.standby.process", "the standbys' process"


@dataclass(slots=True)
class Process:
    """A process of the run, and the launcher's line to it."""

    title: str
    pid: int
    channel: Channel[object]
    worker: int | None = None
    rank: int = 0  # in its island
    done: bool = False
    gone: bool = False
    ours: bool = True  # whether the run started it
    began_s: float | None = None  # when its worker began to train, in the run's time
    replaced: bool = False  # whether another has its seat by now
    leaving: bool = False  # whether it is told to end, the run having fewer workers from now on
    ties: dict[int, int] = field(default_factory=dict)  # a leader's to ranks that are to come, until they do

    @property
    def is_leader(self) -> bool:
        """Whether its worker is this one alone, or it is the first of an island."""
        return self.rank == 0

    def kill(self) -> None:
        """End it outright. It keeps its number until all of them have ended. One that somebody else started is hung up on."""
        if self.ours:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def line(ours: contextlib.ExitStack) -> tuple[list[int], list[int]]:
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
    """Inside, file descriptors for so many workers are opened: say it if this process may not open that many."""
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
    """All processes of one run: the server first, then those that hold tables, the workers by number, and the evaluator."""

    def __init__(self, fork_server: ForkServer) -> None:
        self.fork_server = fork_server
        self.all: list[Process] = []
        self.vacant: dict[int, int] = {}
        """Numbers of table servers that are to join, and descriptors of their ends of the server's lines."""

    @property
    def server(self) -> Process:
        return self.all[0]

    @property
    def table_servers(self) -> list[Process]:
        return [process for process in self.all if process.title.startswith(TABLE_SERVER_TITLE)]

    @property
    def workers(self) -> list[Process]:
        return [process for process in self.all if process.worker is not None and not process.replaced]

    def of(self, worker: int) -> Process | None:
        """The process that has, or last had, this seat."""
        return next((process for process in self.workers if process.worker == worker), None)

    def numbered(self, number: int) -> Process | None:
        """The process that is worker `number` for the user: a whole worker, or one of those that all-reduce as an island."""
        return self.of(number) or next((one for one in self.island(0) if one.rank == number), None)

    def island(self, worker: int) -> list[Process]:
        """The processes that are, or last were, this worker."""
        return [process for process in self.workers if process.worker == worker]

    @property
    def evaluator(self) -> Process:
        return next(process for process in self.all if process.title == EVALUATOR_TITLE)

    def tell_server(self, message: launcher.ToServer, descriptors: Sequence[int] = ()) -> None:
        """Tell it, if it is there: its end is noticed elsewhere."""
        with contextlib.suppress(ChannelClosedError):
            self.server.channel.send(message, descriptors)

    def tell_standbys(self, message: launcher.ToHeads, descriptors: Sequence[int] = ()) -> None:
        for process in self.all:
            if process.title == HEADS_TITLE:
                with contextlib.suppress(ChannelClosedError):
                    process.channel.send(message, descriptors)

    def load(self, job: Job, waiting: Callable[[], None]) -> None:
        """Send the job, with all data that the training function refers to, to where they are started; `waiting` is called once a
        second meanwhile."""
        try:
            packed = dumps(job)
        except Exception as error:
            raise ConfigurationError(
                f"the training function cannot be sent to another process: {culprit(job)}{words_of(error)}; open files, locks "
                "and CUDA tensors cannot travel: make them inside the function"
            ) from error
        with open(anonymous_file(len(packed), "what the training function refers to"), "wb") as file:
            file.write(packed)
            del packed
            file.seek(0)  # for the reader, too: the place in it is shared
            compiles = job.train is not None and job.config.strategy.steps_in_workers
            self.fork_server.load(file.fileno(), compiles, waiting)

    def start(self, job: Job, sockets: Sequence[socket.socket] = (), readers: Sequence[socket.socket] = ()) -> None:
        """Start them all; where workers come from elsewhere, a door for them, and one for `readers`."""
        with contextlib.ExitStack() as ours:  # what is open here for others only
            lines = [line(ours) for _ in range(job.config.workers if job.train is not None else 0)]
            to_evaluator = [ours.enter_context(end).fileno() for end in channel_pair()] if job.evaluate else []
            to_readers = [ours.enter_context(end).fileno() for end in channel_pair()] if readers else []
            to_heads = [ours.enter_context(end).fileno() for end in channel_pair()] if job.config.standby else []
            written = [begun(job, job.threads).detach()] if job.keeping.journal else []
            ours.callback(close_quietly, *written)
            pairs = [channel_pair() for _ in range(job.table_servers)]
            to_tables = [[ours.enter_context(end).fileno() for end in pair] for pair in pairs]
            served = [end for end, _ in to_tables]
            ends = [
                *to_evaluator[:1],
                *to_readers[:1],
                *to_heads[:1],
                *written,
                *served,
                *(end for server_ends, _ in lines for end in server_ends),
            ]
            self._spawn(Spawn(SERVER, "the server", (), leads=job.config.is_durable), ends, launcher.FromServer)
            for server, (_, end) in enumerate(to_tables):
                if server >= job.servers_here:
                    self.vacant[server] = os.dup(end)
                    continue
                self._spawn(Spawn(TABLE_SERVER, f"{TABLE_SERVER_TITLE}{server}", ()), [end], launcher.FromTableServer)
            for worker, (_, own_ends) in enumerate(lines):
                self.worker(worker, own_ends, job.config.ranks)
            for end in to_evaluator[1:]:
                self._spawn(Spawn(EVALUATOR, EVALUATOR_TITLE, ()), [end], launcher.FromEvaluator)
            for end in to_heads[1:]:
                self._spawn(Spawn(HEADS, HEADS_TITLE, ()), [end], launcher.FromHeads)
            for end in to_readers[1:]:
                self._readers(end, [ours.enter_context(one).fileno() for one in readers])
            if sockets:
                knocked_at = [ours.enter_context(one).fileno() for one in sockets]
                self._spawn(Spawn(DOOR, "the door", ()), knocked_at, launcher.FromDoor)

    def _readers(self, server: int, sockets: Sequence[int]) -> None:
        """Start the process that serves readers, and their door, which tells that one."""
        process, door = channel_pair()
        with process, door:
            self._spawn(Spawn(READERS, READERS_TITLE, ()), [server, process.fileno()], reading.FromReaders)
            self.fork_server.spawn(Spawn(DOOR, "the readers' door", (1,)), [door.fileno(), *sockets])

    def worker(self, worker: int, ends: Sequence[int], ranks: int = 1) -> list[Process]:
        """Start a worker of so many processes; `ends`: its ends of its line, which the first of them has. That one is tied to
        each of the others."""
        with contextlib.ExitStack() as ours:
            pairs = [channel_pair() for _ in range(ranks - 1)]
            ties = [[ours.enter_context(end).fileno() for end in pair] for pair in pairs]
            given = [[*ends, *(own for own, _ in ties)], *([other] for _, other in ties)]
            for rank, theirs in enumerate(given):
                order = Spawn(WORKER, named(worker, rank, ranks), (worker, self.server.pid, rank))
                self._spawn(order, theirs, launcher.FromWorker, worker).rank = rank
        return self.island(worker)

    def proxy(self, connection: int, address: str) -> Process:
        """Start a proxy for a worker or a table server of another host, which is at the other end of `connection`."""
        return self._spawn(Spawn(PROXY, f"somebody at {address}", ()), [connection], remote.FromProxy)

    def met(self, connection: int, address: str) -> Process:
        """A worker of this host, which somebody else started."""
        channel: Channel[object] = Channel.attach(connection, remote.FromProxy, f"a worker at {address}")
        self.all.append(Process(channel.peer, 0, channel, ours=False))
        return self.all[-1]

    def _spawn(self, order: Spawn, ends: Sequence[int], kinds: object, worker: int | None = None) -> Process:
        mine, theirs = channel_pair()
        try:
            with theirs:
                pid = self.fork_server.spawn(order, [theirs.fileno(), *ends])
        except BaseException:
            mine.close()
            raise
        self.all.append(Process(order.title, pid, Channel(mine, kinds, order.title), worker))
        return self.all[-1]

    def end(self, grace_s: float) -> None:
        """Leave no process behind: close the lines, give them `grace_s`, kill."""
        for process in self.all:
            process.channel.close()
            close_quietly(*process.ties.values())
        close_quietly(*self.vacant.values())
        self.fork_server.end(grace_s)
