"""How a worker takes part, whatever its line to the server is.

It shows what it has, is given its place in the run's memory, hands over what training begins with, builds its exchange, and
waits for the beginning. Then it asks for data. `Participation` does that. Each kind of worker says how it is seated and how
it asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from msgspec.structs import replace
from torch import nn

from plesio.config.rules import ISLANDS
from plesio.errors import ConfigurationError, PlesioError, StopRun, error_class
from plesio.host.memory import SharedBlock
from plesio.memory.blocks import arenas
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.worker import (
    Farewell,
    GroupGiven,
    Hello,
    LeaseReply,
    LeaseRequest,
    Refused,
    RowsRequest,
    RowsServed,
    StateGiven,
    Welcome,
)
from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.strategy.rules import why_not
from plesio.tables.file import KeptRows
from plesio.tables.module import named_tables
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.carrying import Carried, States, brought_back, hand_over
from plesio.tensors.local import is_split
from plesio.tensors.optimizer_spec import has_momentum
from plesio.transport.board import Board
from plesio.transport.held import Held
from plesio.transport.island_group import IslandGroup
from plesio.transport.ring import Ring
from plesio.transport.row_slots import RowSlots
from plesio.worker.context import Taking, introduction
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.all_reduce import AllReduceExchange
from plesio.worker.exchanges.by_client import ClientExchange
from plesio.worker.exchanges.exchange import Bell, Exchange
from plesio.worker.exchanges.island_bell import IslandBell
from plesio.worker.exchanges.own_step import OwnStepExchange
from plesio.worker.exchanges.server import SeatLostError, ServerExchange
from plesio.worker.exchanges.shared_memory import SharedMemoryExchange
from plesio.worker.guards.split import check_alike, check_kind, check_model
from plesio.worker.island import Island
from plesio.worker.pacer import Timer
from plesio.worker.randomness.draws import OwnDraws
from plesio.worker.replicas import load_kernels, replica_for
from plesio.worker.replicas.mean import MeanReplica
from plesio.worker.replicas.regions import RankShare, agreed
from plesio.worker.replicas.replica import Replica, SharedReplica, reads_in_place
from plesio.worker.replicas.shards import Shards, shards_for
from plesio.worker.row_exchange import RowExchange
from plesio.worker.state import WorkerState

ANSWER_S = 10.0  # how much longer the other ranks of an island wait than the one that waits for the server
decode_reply: Callable[[bytes], LeaseReply] = decoder_of(LeaseReply)
Reply = TypeVar("Reply", Welcome, LeaseReply, RowsServed, StateGiven, GroupGiven)


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in the run's memory.

    Attributes:
        initial: where the `first` worker writes the initial weights, then what its optimizer holds.
        ring: the versions; `slot`: where it writes contributions.
        home: parameters that the worker steps itself.
        board: where workers that fold among themselves meet.
        held: where checkpoints find what the worker holds of its own.
        wanted, keeps: as `OwnStepExchange` takes them.
        state: fetches the state of the optimizer that steps at the server.
        brought: the state that was sent for the optimizer here, where `held` is elsewhere.
        states: the folder for what clients keep; empty where not all workers see the same.
        rows: where it asks each server for rows of tables; `bring`: takes those that the `first` worker's tables have.
    """

    layout: Layout
    initial: Sequence[Arena]
    first: bool
    ring: Ring[Arena]
    slot: Arena
    home: Arena | None = None
    board: Board | None = None
    held: Held | None = None
    wanted: Callable[[], int] = lambda: 0
    keeps: bool = False
    state: Callable[[], tuple[Carried, SharedBlock]] | None = None
    brought: Callable[[], States] | None = None
    states: str = ""
    rows: Sequence[RowSlots] = ()
    bring: Callable[[Mapping[str, KeptRows]], object] = lambda rows: None


class Participation(ABC):
    """What the contexts of all workers (`plesio.worker.context.WorkerContext`) have in common; `lone`: there is and will be no
    other worker."""

    server_pid = 0
    inline = False
    away = False
    """Whether it is on another host than the server."""
    late = False
    """Whether it goes on while an answer travels."""
    lenient: bool
    by_round = False
    refused = False
    """Whether this worker is, and the others go on."""
    _shows: bool  # evaluations need the structure of its model
    _plain: Callable[[], nn.Module] | None = None  # builds it as they are to see it
    _bell: Bell
    _timeout_s: float
    _every: Every | None = None  # overrides how long it trains on its own
    _used: DataUse | None = None
    _exchange: Exchange | None = None
    _fetch: Callable[[], tuple[Carried, SharedBlock]] | None = None  # the state of the optimizer at the server
    _split: Shards | None = None  # this rank's part of the model
    _begun_s: float | None = None
    states = ""
    _shares: Sequence[RankShare] = ()  # of a rank of an island: its part of each tensor
    _goes_on: Callable[[], bool] = staticmethod(lambda: True)  # after the next contribution, if it may
    _send_ahead: Callable[[LeaseRequest, bool], bool]  # `ask_ahead` of a worker that is away

    def __init__(
        self, rank: int, workers: int, seed: int, strategy: Strategy, timer: Timer, lone: bool, stealing: bool
    ) -> None:
        self.rank = rank
        self.workers = workers
        self.seed = seed
        self.state = WorkerState(rank, seed, OwnDraws() if lone else None)
        self.island = Island(self.state, local_rank=rank)
        self._stealing = stealing
        self.now_s = timer.now_s
        self._timer = timer
        self._strategy = strategy

    @property
    def strategy(self) -> Strategy:
        """That of the phase that this worker is in."""
        exchange = self._exchange
        return exchange.strategy if isinstance(exchange, ServerExchange) else self._strategy.phases[0]

    @property
    def in_parts(self) -> bool:
        return not self._stealing or self.strategy.in_lock_step

    # What differs

    @abstractmethod
    def _seated(self, given: Taking, hello: Hello, carried: Carried | None) -> Place:
        """Where this worker, which says `hello`, has its place."""

    def _ready(self, place: Place) -> None:  # noqa: B027 - a greenlet tells it when it waits for the beginning
        """Tell the server that the worker waits for the beginning."""

    def _ask(self, kind: type[Reply], waiting_for: str) -> Reply:
        """The server's next message, where workers fold among themselves."""
        raise NotImplementedError

    @abstractmethod
    def _leased(self, request: LeaseRequest) -> LeaseReply:
        """Ask the server for data, unless that was done `ahead`, and wait for the reply."""

    def _rows(self, request: RowsRequest) -> None:
        """Ask the server for rows of tables, and wait until they are there; what was asked `ahead` is only waited for."""
        raise NotImplementedError

    def _send_rows(self, request: RowsRequest) -> None:
        """Ask the server for rows of tables ahead."""
        raise NotImplementedError

    def _number_ranks(self) -> None:
        """Workers that all-reduce among themselves are numbered by their ranks."""
        if self._strategy.every.among_ranks:
            self.rank, self.workers = self.island.rank, self.island.ranks
            self.state.together = self.island.ranks

    # What all do

    @property
    def _trained_s(self) -> float:
        """The time since training began."""
        return self.now_s() - self._begun_s if self._begun_s is not None else 0.0

    def leave(self) -> None:
        self._bell.send(Farewell())

    def join(self, given: Taking, used: DataUse) -> tuple[Exchange, nn.Module]:
        """Show the server what we have, take our place in memory, and wait for the beginning."""
        self._used = used
        if self.island.group is not None:
            check_kind(given.model)  # before its tables' kernels are compiled
        hello, carried, tensors = introduction(self.state.worker, self._strategy, given, self._shows, self._plain)
        shards = self._split = self._shards(hello, given, tensors)
        if shards is not None:  # it copies tensor by tensor, and each rank's may lie in another order
            specs = tuple(replace(one, order=()) for one in hello.model.specs)
            hello = replace(hello, model=replace(hello.model, specs=specs))
        place = self._seated(given, hello, carried)
        self._fetch, self.states = place.state, place.states
        bring = {"bring": shards.bring} if shards is not None else {}
        hand_over(given.optimizer, carried, tensors, place.initial, place.first, **bring)
        tables = named_tables(given.model)
        if place.first and any(one.rows for one in tables.values()):
            place.bring({name: one.kept() for name, one in tables.items()})
        self.late = self._strategy.goes_on(self.away, has_momentum(given.optimizer))
        exchange = self._exchange = self._build(given, tensors, place, used, shards)
        if self.island.group is not None:
            self.island.group.total([])  # what each of its ranks brings lies there
        self._ready(place)
        self.state.begin(0)
        exchange.begin()
        self._begun_s = self.now_s()
        return exchange, exchange.model if isinstance(exchange, AllReduceExchange) else given.model

    def _shards(self, hello: Hello, given: Taking, tensors: list[torch.Tensor]) -> Shards | None:
        """This rank's part of the model, where the worker is several or torch has split it; else None."""
        group, specs = self.island.group, hello.model.specs
        if group is None and not any(map(is_split, tensors)):
            return None
        if why := why_not(ISLANDS, self._strategy):
            what = (
                "this worker is several processes" if group is not None else "the model is split by torch (a DTensor)"
            )
            raise ConfigurationError(f"{what}, and under {self._strategy.name} {why}")
        check_model(given.model, self.island, tensors)
        if group is None:
            return Shards(tensors, agreed([spec.name for spec in specs], tensors, 0, lambda numbers: [list(numbers)]))
        check_alike(group, specs, hello.optimizers)
        self._shares = agreed([spec.name for spec in specs], tensors, group.rank, group.rows)
        return Shards(tensors, self._shares)

    def _build(
        self, given: Taking, tensors: list[torch.Tensor], place: Place, used: DataUse, shards: Shards | None
    ) -> Exchange:
        """The exchange for who folds: everybody in shared memory, everybody in a replica, or the server."""
        strategy, bell = self._strategy, self._bell
        own = place.layout, given.model, tensors, place.ring
        line = self._timer, used, self._timeout_s
        if place.board is not None:
            shared, share = SharedReplica(*own, place.ring.first.read), strategy.outer.scale(1, self.workers)
            return SharedMemoryExchange(self.state, given.optimizer, shared, bell, *line, place.board, share)
        to_server = bell, *line, strategy, self._every, place.held, self._goes_on if self.late else None
        if place.home is not None:
            mean = MeanReplica(*own, place.slot, home=place.home)
            return OwnStepExchange(self.state, given.optimizer, mean, *to_server, place.wanted, place.keeps)
        if strategy.every.among_ranks:
            assert shards is not None, "its processes are a group"
            leader = self.island.rank == 0
            replicated = shards_for(strategy)(*own, place.slot, shards, leader)
            if isinstance(bell, IslandBell):
                bell.tensors = len(tensors)
            return AllReduceExchange(self.state, given.optimizer, replicated, *to_server, leader, given.model)
        if shards is not None:
            ranked = shards_for(strategy)(*own, place.slot, shards, self.island.rank == 0)
            if isinstance(bell, IslandBell):
                bell.tensors, bell.probes = len(tensors), ranked.probes
            return ServerExchange(self.state, given.optimizer, ranked, *to_server)
        replicate = partial(self._replica, given, tensors, place)
        kind = ClientExchange if strategy.every.by_client else ServerExchange
        if strategy.send.secure is not None:
            from plesio.worker.exchanges.secure import SecureExchange  # the cryptography takes a while to import

            kind = SecureExchange
        replica = replicate(strategy.phases[0])
        load_kernels(place.layout, strategy.phases[1:])
        exchange = kind(self.state, given.optimizer, replica, *to_server, replicate=replicate, brought=place.brought)
        if place.rows:
            row_tables, several = named_tables(given.model), any(one.send.stepped for one in strategy.phases)
            reader = self.rank if place.rows[0].readers > 1 else 0  # in places of its own
            exchange.has_tables(RowExchange(row_tables, place.rows, reader, self._rows, self._send_rows, several))
        return exchange

    def _replica(self, given: Taking, tensors: list[torch.Tensor], place: Place, strategy: Strategy) -> Replica:
        """As this worker has the model in a phase of that strategy, which begins."""
        ring = place.ring if reads_in_place(strategy, place.layout, given.model) else place.ring.copied
        kind = replica_for(strategy, tensors[0].device)
        replica = kind(place.layout, given.model, tensors, ring, place.slot, self.late)
        replica.private = given.own.parameters if given.own is not None else ()
        return replica

    @property
    def patience_s(self) -> float:
        """How long a rank of an island waits for the others: longer than the leader for the server."""
        return self._timeout_s + ANSWER_S

    @property
    def group_terms(self) -> tuple[str, float | None]:
        """What its island is called, and how long a collective of the training loop may take, if not as long as other waits."""
        if self._strategy.every.among_ranks:
            return self._strategy.name, self._timeout_s / 2
        return f"worker {self.rank}", None

    def gather(self, group: IslandGroup, local_rank: int) -> None:
        """This process is a rank of an island, whose ranks agree by `group`."""
        raise NotImplementedError

    def _expected(self, kind: type[Reply], reply: object) -> Reply:
        """The message, if it is of this kind; what the server refuses is raised here."""
        if isinstance(reply, Refused):
            self.refused = reply.alone
            raise (error_class(reply.kind) or PlesioError)(reply.why)
        assert isinstance(reply, kind), "a worker knows what comes next"
        return reply

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Ask the server; what was done since is told first, so that it need not be asked about."""
        if self.state.stopped and not self.inline:
            raise StopRun("the run is over")  # also for a loop without end
        if self._exchange is not None:
            self._exchange.report()
        self.state.epochs = request.epoch + 1 if request.most else self.state.epochs
        while True:
            try:
                return self._lease(request)
            except SeatLostError as lost:
                if not isinstance(self._exchange, ServerExchange):
                    raise
                self._exchange.begin(lost)
                request = replace(request, unused=0, ahead=False)  # what it was leased is leased to others

    def _lease(self, request: LeaseRequest) -> LeaseReply:
        """One lease for all ranks of an island: the leader asks."""
        group = self.island.group
        if group is None:
            return self._leased(request)
        self._check_order(group, request)
        reply = decode_reply(group.told(lambda: encode(self._leased(request))))
        self.state.stopped = self.state.stopped or reply.stop
        return reply

    def _check_order(self, group: IslandGroup, request: LeaseRequest) -> None:
        """Raise `ConfigurationError` unless all ranks drew the same batches for this epoch."""
        every = group.rows([request.total, request.digest], f"data of epoch {request.epoch}")
        others = [rank for rank, one in enumerate(every) if one != every[group.rank]]
        if not others:
            return
        first, second = sorted((group.rank, others[0]))
        kind = "workers" if self._strategy.every.among_ranks else f"worker {self.state.worker}: its ranks"
        raise ConfigurationError(
            f"{kind} {first} and {second} drew different batches for epoch {request.epoch}: each takes its part of the same "
            "ones, so give all the same data, whole, and draw its order from worker.seed, not by rank or from a source that "
            "nobody seeds"
        )

    def ask_ahead(self, request: LeaseRequest, due: bool) -> bool:
        if due and self._exchange is not None:
            self._exchange.report()
        return not self.state.stopped and self._send_ahead(request, due)

    def optimizer_state(self, tensors: Sequence[torch.Tensor]) -> States | None:
        """The state of the optimizer that steps at the server; None on another host: it may be large, and a checkpoint has it."""
        if self._fetch is None or self._exchange is None:
            return None
        carried, block = self._fetch()
        there = arenas(block, self._exchange.replica.layout, len(carried.keys))
        take = {"take": self._split.taken} if self._split is not None else {}
        states = brought_back(carried, tensors, there, **take)
        block.close()
        return states
