"""The worker process: a `Worker` whose contributions go to a server process beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from plesio.config.faults import slowness
from plesio.errors import ConfigurationError, ServerLostError
from plesio.launch.gathering import GatheringContext
from plesio.launch.job import Job
from plesio.launch.leaving import LeavingBySignal
from plesio.launch.local.children import keep_to_itself, reported_to
from plesio.launch.local.islands import Ties, together
from plesio.launch.local.output import speak_as
from plesio.launch.participation import Reply
from plesio.launch.returned import packed
from plesio.memory.blocks import arenas
from plesio.observe.clients import Visit
from plesio.protocol import worker as messages
from plesio.protocol.launcher import Finished, LoggedByWorker, Returned, StopRequest, Visited
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.reading.place import ReadingPlace
from plesio.system.allocator import keep_freed_memory
from plesio.system.memory import CopyOnWriteView, SharedBlock
from plesio.tables.file import KeptRows, in_memory
from plesio.tensors.arena import PAGE, Layout
from plesio.tensors.carrying import Carried
from plesio.tensors.model import device_of
from plesio.transport.board import Board
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly, readable
from plesio.transport.doorbell import Doorbell
from plesio.transport.held import Held
from plesio.transport.island_group import IslandGroup
from plesio.transport.ring import Ring
from plesio.transport.row_slots import RowSlots, wait_served
from plesio.transport.run_group import default_group
from plesio.worker.exchanges.island_bell import IslandBell
from plesio.worker.exchanges.place import Home, Place, RowsPlace
from plesio.worker.introduction import Taking
from plesio.worker.pacer import Pacer
from plesio.worker.randomness.seeding import begin_with
from plesio.worker.replicas.replica import reads_in_place
from plesio.worker.warn import warn_no_more
from plesio.worker.worker import Worker, taking_part

BEFORE = "training had not begun: the messages of the run's head, or of ps.run, say why"


class ProcessContext(GatheringContext):
    """The context of a worker process; `line`: its ends of channel, push and answer, of which only the leader has any; `ties`:
    to the other ranks of its island."""

    def __init__(
        self, job: Job, worker: int, engine: Channel[Any], line: Sequence[int], ties: Ties | None = None
    ) -> None:
        config, seed = job.config, job.config.seeded
        number = ties.rank if ties is not None and config.strategy.every.among_ranks else worker
        pacer = Pacer(config.pace, slowness(config.faults, number), random.Random(seed * 7919 + number))
        super().__init__(worker, config.workers, seed, config.strategy, pacer, config.lone, config.stealing)
        self.lenient, self.by_round = config.on_worker_error == "continue", job.by_round
        self._ties = ties = ties or Ties(0, ())
        self._shows = (job.evaluate is not None or (job.by_round and config.ranks == 1)) and bool(line)
        self._plain = job.model
        self._line = Doorbell(line[1], line[2], worker) if line else None
        if self._line is not None:
            self._bell = self._line
        self._timeout_s = 2 * config.timeout_s  # the server notices first, and knows who is waited for
        self._job = job
        if (reading := job.reading) is not None:
            workers = (job.listening or reading).token
            self.read_at = ReadingPlace(reading.host, reading.port, reading.token, workers, reading.credentials)
        self._engine = engine
        self._brought: tuple[int, ...] = ()  # the rows that training begins with, in a file
        self._rows_came = self._awaits_rows = False  # rows that were asked for ahead
        self._slots: Sequence[RowSlots] = ()  # where rows come, of each server,
        self._served = -1  # and the bell that several servers ring then
        self._server: Channel[messages.ToWorker] | None = None
        if line:
            self._server = Channel.attach(line[0], messages.ToWorker, "the server")
        channels = [engine, *ties.channels, *([self._server] if self._server is not None else [])]
        self.hang_up = keep_to_itself([*[one.fileno() for one in channels], *line[1:]], *channels)

    def gather(self, group: IslandGroup, local_rank: int) -> None:
        super().gather(group, local_rank)
        self._bell = IslandBell(self.island, self._line)

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        if self._line is not None:
            self._engine.send_in_time(LoggedByWorker(self._trained_s, steps, metrics))

    def visited(self, visits: tuple[Visit, ...], early: bool = False) -> None:
        self._engine.send_in_time(Visited(visits, early))

    def stop(self, why: str) -> None:
        with suppress(ChannelClosedError):  # the run is over anyway
            self._engine.send(StopRequest(why))

    def _tell(self, message: messages.ToServer, descriptors: Sequence[int] = ()) -> None:
        """Tell the server on the channel, if this rank is known to it. That it is gone, the answer's end of file tells."""
        if self._server is not None:
            with suppress(ChannelClosedError):
                self._server.send(message, descriptors)

    def _seated(self, given: Taking, hello: messages.Hello, carried: Carried | None) -> Place:
        device = device_of(given.model)
        if device.type != "cpu" and self._strategy.via.in_shared_memory:
            raise ConfigurationError(
                f"{self._strategy.name} trains in memory that all workers share, which is the CPU's, and this model is on "
                f"{device}; every other strategy takes a model on any device"
            )
        self._tell(hello)
        welcome, descriptors = self._received(messages.Welcome, "every worker to prepare its model", of_all=True)
        layout, seats = Layout(hello.model.specs), self._job.config.seats
        block = SharedBlock(descriptors[0], layout.nbytes * welcome.buffers)
        versions = arenas(block, layout, welcome.buffers)
        ring = Ring(versions)
        if not self._strategy.via.at_server:
            block.close()
            board = Board.attach(descriptors[2], seats)
            return Place(layout, versions, welcome.first, ring, versions[0], board=board)
        homes = seats if self._strategy.gives_back_mean else 0
        slots = arenas(SharedBlock(descriptors[1], layout.nbytes * (seats + homes)), layout, seats + homes)
        in_place = any(reads_in_place(one, layout, given.model) for one in self._strategy.phases)
        if not homes and CopyOnWriteView.possible() and in_place:
            view = CopyOnWriteView(descriptors[0], layout.nbytes * len(versions))
            ring = Ring(arenas(view, layout, len(versions)), versions, partial(view.renew, layout.nbytes))
        block.close()
        held, self._slots, self._served = self._rest_of(welcome, descriptors[3:], hello)
        home = None
        if homes:
            mirrors = Board.attach(descriptors[2], seats)
            wanted = lambda: mirrors.mirror_wanted  # noqa: E731
            home = Home(slots[homes + self.state.worker], wanted, bool(self._job.keeping.folder))
        return Place(
            layout,
            versions,
            welcome.first,
            ring,
            slots[self.state.worker],
            home=home,
            held=held,
            state=partial(self._state, layout),
            states=self._job.keeping.clients,
            rows=RowsPlace(self._slots, self._rows, self._tell, self._bring) if self._slots else None,
        )

    def _rest_of(
        self, welcome: messages.Welcome, fds: Sequence[int], hello: messages.Hello
    ) -> tuple[Held | None, list[RowSlots], int]:
        """Where it leaves what it holds of its own; where rows come, and what several servers ring then."""
        rows = len(fds) - welcome.servers - (welcome.servers > 1)
        readers = self._job.config.seats + 1
        slots = [RowSlots.attach(fd, hello.tables, readers) for fd in fds[rows : rows + welcome.servers]]
        several = () if self._strategy.every.among_ranks else (self.island.ranks, self.island.rank)
        held = Held(fds[0], *several) if rows else None  # what all hold alike is one of them's
        return held, slots, fds[-1] if welcome.servers > 1 else -1

    def _bring(self, rows: Mapping[str, KeptRows]) -> None:
        self._brought = (in_memory(rows),)

    def _ready(self, place: Place) -> None:
        keep_freed_memory()  # the model has moved to shared memory by now, and what it lay in is given back
        self._tell(messages.Ready(), self._brought)
        close_quietly(*self._brought)
        if self._line is not None:
            self._await(self._line.waiting)

    def _ask(self, kind: type[Reply], waiting_for: str) -> Reply:
        return self._received(kind, waiting_for)[0]

    def _received(self, kind: type[Reply], waiting_for: str, of_all: bool = False) -> tuple[Reply, list[int]]:
        """The server's next message. `of_all`: every rank of the island waits for it, and for its descriptors."""
        try:
            hear = partial(self._heard, waiting_for)
            reply, descriptors = self._ties.heard(hear, self._timeout_s, waiting_for) if of_all else hear()
        except ChannelClosedError:
            raise ServerLostError(
                f"the server is gone: worker {self.number} waited for {waiting_for}; "
                + ("go on from its last checkpoint with resume=, or start the run again" if self._begun_s else BEFORE)
            ) from None
        return self._expected(kind, reply), descriptors

    def _heard(self, waiting_for: str) -> tuple[Any, list[int]]:
        assert self._server is not None, "the leader alone asks it"
        if self._begun_s is None:
            self._await(partial(readable, self._server.fileno()))
        reply, descriptors = self._server.receive(self._timeout_s, waiting_for)
        if isinstance(reply, RowsServed) and reply.ahead and not self._awaits_rows:
            self._rows_came = True  # behind which there is what is waited for
            reply, descriptors = self._server.receive(self._timeout_s, waiting_for)
        return reply, descriptors

    def _leased(self, request: messages.LeaseRequest) -> messages.LeaseReply:
        self._tell(request)
        reply = self._ask(messages.LeaseReply, f"data of epoch {request.epoch}")
        self.state.stopped = self.state.stopped or reply.stop
        return reply

    def _rows(self, request: RowsRequest) -> None:
        """Ask for rows of tables, unless that was done ahead, and wait until they are there."""
        assert self._exchange is not None, "its model has tables"
        began_s = self._exchange.pacer.now_s()
        if not request.ahead:
            self._tell(request)
        if self._served >= 0:
            assert self._server is not None, "an island has no tables"
            if not wait_served(self._slots, self.number, request, self._served, self._server.fileno(), self._timeout_s):
                self._ask(RowsServed, "rows of tables")  # it says why they do not come
        elif not (request.ahead and self._rows_came):
            self._awaits_rows = request.ahead
            self._ask(RowsServed, "rows of tables")
        self._exchange.used.waited_s += self._exchange.pacer.now_s() - began_s
        if request.ahead:
            self._rows_came = self._awaits_rows = False

    def _state(self, layout: Layout) -> tuple[Carried, SharedBlock]:
        self._tell(messages.StateWanted())
        given, descriptors = self._received(messages.StateGiven, "the optimizer's state", of_all=True)
        while given.version < self.state.version:  # the leader asked for that one alone, before
            close_quietly(*descriptors)
            given, descriptors = self._received(messages.StateGiven, "the optimizer's state", of_all=True)
        return given.carried, SharedBlock(descriptors[0], layout.nbytes * len(given.carried.keys) or PAGE)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Inside, the ranks of an island, or workers in lock step, are the default group of `torch.distributed`."""
        ranks, among_ranks = self._job.config.ranks, self._strategy.every.among_ranks
        always_even = all(one.in_lock_step for one in self._strategy.phases)
        if ranks > 1 or among_ranks:
            store = self._ties.store(self._timeout_s)
            name, patience_s, collective_s = self.group_terms
            rank, lines = self._ties.rank, self._ties.lines
            with together(store, rank, ranks, patience_s, name, collective_s=collective_s, lines=lines) as group:
                self.gather(group, self.number * ranks + group.rank)  # all islands are on this host
                yield
        elif self.workers == 1 or self._job.listening is not None or not always_even:
            yield
        else:
            with default_group(self.number, self.workers, self._group_given, self._make_way, self._timeout_s):
                yield

    def _group_given(self) -> messages.GroupGiven:
        self._tell(messages.GroupWanted())
        return self._ask(messages.GroupGiven, "who is left for a collective")

    def _make_way(self) -> bool:
        return self._exchange is not None and self._exchange.make_way()


def main(job: Job, descriptors: list[int], worker: int, server_pid: int, rank: int = 0) -> None:
    """Entry of a worker process, the `rank`-th of its island. `descriptors`: engine; of a leader, server, push, answer; and
    those of its ties."""
    torch.set_num_threads(job.threads)
    begin_with(job.config.seeded, job.sources)
    engine: Channel[object] = Channel.attach(descriptors[0], object, "the engine")
    ends = 4 if rank == 0 else 1
    context = ProcessContext(job, worker, engine, descriptors[1:ends], Ties(rank, descriptors[ends:]))
    context.server_pid = server_pid
    ranks = job.config.ranks
    among_ranks = job.config.strategy.every.among_ranks
    if among_ranks:
        speak_as(rank, ranks, job.log_level)
    else:
        speak_as(worker, job.config.workers, job.log_level, rank, ranks)
    if rank:
        warn_no_more()  # the leader does
    with reported_to(engine, in_group=ranks > 1):
        with LeavingBySignal(lambda: context.process.tell_to_leave(), job.config.leave_s), context.group():
            made = Worker(context)
            with taking_part(made):
                value = job.function(made)
                if (rank == 0 or among_ranks) and (body := packed(value, worker)):
                    engine.send(
                        Returned(body)
                    )  # before the server hears of the end: when that has ended, nobody waits for this
        engine.send(Finished(context.state.early))
