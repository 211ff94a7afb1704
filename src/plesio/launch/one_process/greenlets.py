"""Many workers in one process: each runs the user's unmodified training function in a greenlet.

A greenlet runs until it wants something of the server (its *request*), and is suspended until that is answered. Who is
answered when is decided elsewhere: by the virtual clock (`plesio.launch.simulated`) or by a journal
(`plesio.launch.replayed`). Everything between two requests is done at once when the first is answered: only its time
passes later, if time passes at all. So a version needs to be kept no longer than it takes to answer.

| request                    | is answered by                                        |
| -------------------------- | ----------------------------------------------------- |
| Hello                      | a `Place`: the run's memory, once all have shown their model |
| Ready                      | Beginning                                              |
| LeaseRequest               | LeaseReply; what was asked `ahead` the `Watcher` heard |
| Contribution, DroppedStep  | GoOn                                                   |
| Contribution (`goes_on`)   | nothing: the worker goes on when it is sent            |
| RowsRequest                | RowsServed: rows of tables lie in its slot; what was asked `ahead` the `Watcher` heard |
| LOOK                       | whether the answer to that has come by now             |
| TAKE                       | that GoOn                                              |
| None: the function returned | nothing                                               |

Greenlets share what processes do not: the random sources, torch's gradient mode, the modules' globals, the address
space. The first two are put back when a greenlet goes on; globals of the user's script are really shared, though the
object whose method trains is not (`plesio.launch.one_process.own_copies`). Every worker copies each version: what a loop writes
into its parameters (clipped weights, their average) would else reach everybody.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Any

import torch
from greenlet import GreenletExit, greenlet
from torch import nn

from plesio.core.events import Whereabouts
from plesio.errors import PlesioError, WorkerError, traceback_of, words_of
from plesio.launch.participation import Participation
from plesio.observe.clients import Visit
from plesio.protocol.rows import RowsRequest
from plesio.protocol.worker import (
    A,
    Beginning,
    Contribution,
    DroppedStep,
    Farewell,
    FromWorker,
    Hello,
    LeaseReply,
    LeaseRequest,
    Need,
    Ready,
)
from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.tensors.arena import Arena
from plesio.tensors.carrying import Carried
from plesio.transport.doorbell import Located, nothing
from plesio.transport.ring import Ring, Shown
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.place import Place
from plesio.worker.exchanges.server import SeatLostError, ServerExchange
from plesio.worker.introduction import Taking
from plesio.worker.randomness.seeding import RandomState, begin_with
from plesio.worker.worker import Worker, cut_off, taking_part


class Peek(Enum):
    """What a worker that went on asks about the answer that travels."""

    LOOK = "whether it has come, at the end of a step"
    TAKE = "to have it"


Request = Hello | Ready | LeaseRequest | RowsRequest | Contribution | DroppedStep | Peek
FOREVER_S = float("inf")


class StillTimer:
    """A worker's own time, which stands still."""

    time_s = 0.0
    paces = False
    part = 1.0

    def rest(self, sleep: Callable[[float], object]) -> None: ...

    def begin(self) -> None: ...

    def now_s(self) -> float:
        return self.time_s

    def takes(self, step_s: float) -> None: ...

    def waits(self, seconds: float) -> None: ...


class Watcher:
    """Whoever runs the greenlets, as a worker sees it."""

    timer: StillTimer
    away: bool  # whether the worker is on another host than the server

    def cancelled(self, used: DataUse) -> bool:
        """Whether the step under way is known not to count."""
        return False

    def ask_ahead(self, need: Need, due: bool = True) -> bool:
        """A worker asks for something and goes on, if that is `due`; whether it does. For data only one that is away does."""
        return False

    def goes_on(self) -> bool:
        """Whether the worker does after its next contribution, if it may."""
        return True

    def leaves(self) -> bool:
        """Whether the worker left the run here, in good order."""
        return False

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        """What the training function logged."""

    def visited(self, visits: tuple[Visit, ...], early: bool = False) -> None:
        """Clients' turns are over; `early`: what they moved is still to be sent."""

    def counted(self, samples: int) -> None:
        """So many were of its last step."""

    def stop(self, why: str) -> None:
        """It asks for the end of the whole run."""


class GreenletWorker(Participation):
    """One worker: its training function, where it stands, and the `plesio.worker.context.WorkerContext` of its `Worker`.

    `every` overrides how long it trains on its own; `shows`: evaluations need its model's structure, or what `plain` builds. A
    replay is `lenient`: it goes as far as the run did. `lone`: there is and will be no other; `sources`: its random sources at
    the beginning. `stealing`: fast workers take more of the data.
    """

    inline = True
    _bell: _Switch

    def __init__(
        self,
        train: Callable[[Worker], object],
        strategy: Strategy,
        number: int,
        workers: int,
        seed: int,
        watcher: Watcher,
        every: Every | None = None,
        shows: bool = False,
        lenient: bool = True,
        lone: bool = False,
        sources: bytes = b"",
        stealing: bool = True,
        plain: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__(number, workers, seed, strategy, watcher.timer, lone, stealing)
        self.lenient = lenient
        self._timeout_s = FOREVER_S
        self._shows, self._plain = shows, plain
        self._every = every
        self.model: nn.Module | None = None
        """What the training function gave to prepare, once it did."""
        self.returned: object = None
        """What the training function returned, once it did."""
        self.error: PlesioError | None = None
        """What the training function raised."""
        self.logged = watcher.logged
        self.visited = watcher.visited
        self.stop = watcher.stop
        self.send_ahead = self._send_ahead = watcher.ask_ahead
        self._goes_on = watcher.goes_on
        self.state.left_here = watcher.leaves
        self._train = train
        self._sources = sources
        self._watcher = watcher
        self.away = watcher.away
        self._greenlet = greenlet(self._run)

    def resume(self, answer: object = None) -> Request | None:
        """Answer the last request (or begin); the next one, or None when the training function is over."""
        return None if self._greenlet.dead else self._greenlet.switch(answer)

    @property
    def in_flight(self) -> bool:
        """Whether an answer to it travels, and it has gone on."""
        return isinstance(self._exchange, ServerExchange) and self._exchange.in_flight

    @property
    def steps_alone(self) -> int:
        """How many steps it took since its last exchange."""
        return self._exchange.steps_alone if isinstance(self._exchange, ServerExchange) else 0

    def at(self, request: Request | None) -> Whereabouts:
        """Where in its loop it makes this request."""
        return self.state.at(self._used.batches if self._used is not None else 0, isinstance(request, LeaseRequest))

    def lose_seat(self) -> Request | None:
        """Its last request is not answered: it takes part anew, where it is in its loop; its next request."""
        request: Request | None = self._greenlet.throw(SeatLostError(self._bell.begin))
        return request

    def kill(self) -> None:
        """It dies where it stands; what it raised is told by then."""
        if self._greenlet:
            self._greenlet.throw(GreenletExit)
        self.error = None  # it leads to frames that lead here

    def _run(self, _: object) -> None:
        torch.set_grad_enabled(True)  # whatever the one that ran before has left
        begin_with(self.seed, self._sources)
        worker = Worker(self)
        try:
            with taking_part(worker):
                self.returned = self._train(worker)
        except GreenletExit:
            cut_off(worker)
        except PlesioError as error:
            traceback.clear_frames(error.__traceback__)  # the run's memory is not to last as long as somebody keeps it
            self.error = error
        except Exception as error:
            raised = f"{type(error).__name__}: {words_of(error)}\n{traceback_of(error)}"
            self.error = WorkerError(f"worker {self.number} raised {raised}")
        finally:
            if self._exchange is not None:
                assert isinstance(self._exchange, ServerExchange), "it has a server"
                self._exchange.let_go()
                self._exchange = self._fetch = None

    def _seated(self, given: Taking, hello: Hello, carried: Carried | None) -> Place:
        assert self._used is not None, "it takes part"
        self.model = given.model
        self._bell = _Switch(self._watcher, self._used, self.state.draws is not None)
        place: Place = wait(hello)
        return place

    def _leased(self, request: LeaseRequest) -> LeaseReply:
        if self.state.stopped:
            return LeaseReply(stop=True)
        begun = self._exchange is not None and self._used is not None and self._used.batches > 0
        keeps = begun or self.state.draws is not None  # else they are seeded anew
        reply: LeaseReply = wait(request, keeps)
        return reply

    def leave(self) -> None:
        """Nothing to tell: the end of the function is seen."""


class _Switch:
    """What a worker in a greenlet has in place of a doorbell."""

    def __init__(self, watcher: Watcher, used: DataUse, lone: bool) -> None:
        self._watcher = watcher
        self._place = 0
        self._used = used
        self._lone = lone
        self._request: Request = Ready()
        self._lost: SeatLostError | None = None  # while it went on

    def begin(self) -> Beginning:
        """Take part anew."""
        self._request = Ready()
        return self.answer(Beginning, FOREVER_S, 0, 0)

    def send(self, message: FromWorker) -> None:
        """Keep it until the answer is waited for; that of the end is seen anyway."""
        if isinstance(message, Farewell):
            self._watcher.counted(message.samples)
        if not isinstance(message, Contribution):
            return
        self._request = message
        if message.beside.goes_on:
            self._request = Peek.TAKE
            self._ask(message)

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing
    ) -> A:
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost
        keeps = self._lone or self._request is Peek.TAKE
        located: Located = wait(self._request, keep_random=keeps)  # of others, each contribution seeds them anew
        answer, self._place = located
        assert isinstance(answer, kind), "a worker knows what comes next"
        meanwhile()  # the others share the random sources: not before they ran
        return answer

    def _ask(self, request: Request) -> bool:
        """Make a request while an answer travels; whether it has come, or is lost with the seat."""
        try:
            return bool(wait(request))
        except SeatLostError as lost:
            self._lost = lost
            return True

    def shown(self, ring: Ring[Arena]) -> Shown[Arena]:
        return ring.buffers[self._place]

    def waiting(self, timeout_s: float = 0.0) -> bool:
        if self._request is Peek.TAKE:
            return self._lost is not None or self._ask(Peek.LOOK)
        called_off = self._watcher.cancelled(self._used)
        if called_off:
            self._request = DroppedStep(self._used.batches)
        return called_off


def wait(request: Request, keep_random: bool = True) -> Any:
    """In a worker's greenlet: make a request, and let others run until it is answered."""
    state = RandomState() if keep_random else None
    gradients = torch.is_grad_enabled()
    parent = greenlet.getcurrent().parent
    assert parent is not None, "only a greenlet waits like this"
    try:
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(), _no_autocast():
            answer = parent.switch(request)
    finally:
        torch.set_grad_enabled(gradients)
    if state is not None:
        state.restore()
    return answer


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Let others run as if this worker were not within `torch.autocast`, as it may be where it wants rows of tables.

    What that has cast is kept for a thread until the outermost block is left, which is to be each worker's own: others
    would find parameters as they were before a step.
    """
    if not torch.is_autocast_enabled("cpu"):
        yield
        return
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", True)
        for _ in range(depth):
            torch.autocast_increment_nesting()
