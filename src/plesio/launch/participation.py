"""How a worker takes part, whatever its line to the server is.

It shows what it has, is given its place in the run's memory, hands over what training begins with, builds its exchange, and
waits for the beginning. Then it asks for data. `Participation` does that. Each kind of worker says how it is seated and how
it asks.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from msgspec.structs import replace
from torch import nn

from plesio.errors import PlesioError, StopRun, error_class
from plesio.memory.blocks import arenas
from plesio.protocol.worker import Farewell, Hello, LeaseReply, LeaseRequest, Refused, ToWorker
from plesio.reading.place import ReadingPlace
from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.system.memory import SharedBlock
from plesio.tensors.carrying import Carried, States, brought_back, hand_over
from plesio.tensors.optimizer_spec import has_momentum
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.builders import exchange_of
from plesio.worker.exchanges.exchange import Bell, Exchange
from plesio.worker.exchanges.making import Making
from plesio.worker.exchanges.place import Place
from plesio.worker.exchanges.server import SeatLostError, ServerExchange
from plesio.worker.introduction import Taking
from plesio.worker.own_process import OwnProcess
from plesio.worker.pacer import Timer
from plesio.worker.randomness.draws import OwnDraws
from plesio.worker.state import LEAVES, WorkerState

LOOK_S = 0.2  # how often a worker that waits for the beginning looks whether it is to leave
Reply = TypeVar("Reply", bound=ToWorker)


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
    _begun_s: float | None = None
    states = ""
    _goes_on: Callable[[], bool] = staticmethod(lambda: True)  # after the next contribution, if it may
    _send_ahead: Callable[[LeaseRequest, bool], bool]  # `ask_ahead` of a worker that is away

    def __init__(
        self, number: int, workers: int, seed: int, strategy: Strategy, timer: Timer, lone: bool, stealing: bool
    ) -> None:
        self.number = number
        self.workers = workers
        self.seed = seed
        self.state = WorkerState(number, seed, OwnDraws() if lone else None)
        self._stealing = stealing
        self.now_s = timer.now_s
        self._timer = timer
        self._strategy = strategy
        self.process = OwnProcess.lone(self.state, strategy)

    @property
    def strategy(self) -> Strategy:
        """The one whose rules hold."""
        exchange = self._exchange
        return exchange.strategy if isinstance(exchange, ServerExchange) else self._strategy.first

    @property
    def in_parts(self) -> bool:
        return not self._stealing or self.strategy.in_lock_step

    read_at: ReadingPlace | None = None
    """Where the run can be read, if it can."""

    # What differs

    @abstractmethod
    def _seated(self, given: Taking, hello: Hello, carried: Carried | None) -> Place:
        """Where this worker, which says `hello`, has its place."""

    def _ready(self, place: Place) -> None:  # noqa: B027 - a greenlet tells it when it waits for the beginning
        """Tell the server that the worker waits for the beginning."""

    def _ask(self, kind: type[Reply], waiting_for: str) -> Reply:
        """The server's next message, where workers fold among themselves."""
        raise NotImplementedError

    def _await(self, come: Callable[[float], bool]) -> None:
        """Wait until something has come, as it says within so many seconds, before training begins: others may be long in coming,
        and this worker may be told to leave meanwhile. `StopRun` if it is."""
        end_s = time.monotonic() + self._timeout_s
        while not come(LOOK_S) and time.monotonic() < end_s:
            if self.state.leaves():
                raise StopRun(LEAVES)

    @abstractmethod
    def _leased(self, request: LeaseRequest) -> LeaseReply:
        """Ask the server for data, unless that was done `ahead`, and wait for the reply."""

    # What all do

    @property
    def _trained_s(self) -> float:
        """The time since training began."""
        return self.now_s() - self._begun_s if self._begun_s is not None else 0.0

    def leave(self) -> None:
        self._bell.send(Farewell(early=self.state.early))

    def join(self, given: Taking, used: DataUse) -> tuple[Exchange, nn.Module]:
        """Show the server what we have, take our place in memory, and wait for the beginning."""
        self._used = used
        hello, carried, tensors = self.process.introduction(given, self._shows, self._plain)
        place = self._seated(given, hello, carried)
        self._fetch, self.states = place.state, place.states
        hand_over(given.optimizer, carried, tensors, place.initial, place.first, **self.process.brings)
        place.bring_from(given.model)
        self.late = self._strategy.goes_on(self.away, has_momentum(given.optimizer))
        exchange = self._exchange = exchange_of(self._making(given, tensors, place, used))
        self.process.arrive()
        self._ready(place)
        self.state.begin(0)
        exchange.begin()
        self._begun_s = self.now_s()
        return exchange, given.model if exchange.model is None else exchange.model

    def _making(self, given: Taking, tensors: Sequence[torch.Tensor], place: Place, used: DataUse) -> Making:
        return Making(
            state=self.state,
            workers=self.workers,
            strategy=self._strategy,
            every=self._every,
            model=given.model,
            optimizer=given.optimizer,
            tensors=tensors,
            private=given.own.parameters if given.own is not None else (),
            shards=self.process.part,
            place=place,
            goes_on=self._goes_on if self.late else None,
            line=(self._bell, self._timer, used, self._timeout_s),
        )

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
        if not self._strategy.every.by_client and self.state.leaves():
            raise StopRun(LEAVES)
        if self._exchange is not None:
            self._exchange.report()
        self.state.epochs = request.epoch + 1 if request.most else self.state.epochs
        while True:
            try:
                return self.process.lease(self._leased, request)
            except SeatLostError as lost:
                if not isinstance(self._exchange, ServerExchange):
                    raise
                self._exchange.begin(lost)
                request = replace(request, unused=0, ahead=False)  # what it was leased is leased to others

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
        states = brought_back(carried, tensors, there, **self.process.takes)
        block.close()
        return states
