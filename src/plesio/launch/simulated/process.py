"""One process of a simulated worker: what it is at, what it hears of what is decided, and what it sends next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from plesio.core.events import Abandoned, Cancel, Event, Grant
from plesio.core.membership import Seat
from plesio.launch.one_process.greenlets import Peek
from plesio.launch.simulated.clock import VirtualClock
from plesio.launch.simulated.workers import Answer, Message, Participant, State
from plesio.observe.meter import WorkerMeter
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.protocol.worker import Contribution, Need, Supply
from plesio.server.program import NO_ANSWER
from plesio.transport.doorbell import Located


class Running(Protocol):
    """The run, as a process knows it."""

    clock: VirtualClock

    def send(self, index: int, sent_s: float, nbytes: int, arrive: Callable[..., object], what: object) -> None: ...
    def push_nbytes(self, index: int, made: Contribution) -> int: ...
    def arrived(self, message: Message) -> None: ...
    def receive(self, event: Event) -> None: ...


@dataclass(slots=True, eq=False)
class Process:
    """Of worker `index` in `run`."""

    participant: Participant
    run: Running
    meter: WorkerMeter
    index: int
    incarnation: int
    state: State = State.ABSENT
    latest: Message | None = None
    called_off: tuple[Cancel, Located, float] | None = None
    """A cancellation that came while it waited for data, with its answer, and when that is there."""
    ahead: dict[object, Message] = field(default_factory=dict)
    """What it needs and does not wait for, by kind."""
    supplied: dict[object, tuple[Supply, float]] = field(default_factory=dict)
    """What it has not taken, by kind, and when that is there."""
    in_flight: bool = False  # whether it went on after its last contribution, and has not taken the answer,
    answer: tuple[Grant, Located, float] | None = None  # and that, once it is decided, and when it is there

    def successor(self) -> Process:
        """The next process of its worker."""
        return Process(self.participant, self.run, self.meter, self.index, self.incarnation + 1, State.HERE)

    def go_on(self, answer: Answer, told: Located, has_it_s: float) -> None:
        """Tell it to go on, and plan what it sends next."""
        ready_s, request = self.participant.go_on(answer, told, has_it_s)
        assert ready_s >= has_it_s, f"worker {self.index} answered before it was asked: {request}"
        message = self.latest = Message(self.index, self.incarnation, ready_s, request)
        nbytes = 0
        if request is Peek.LOOK:
            self.run.clock.at(ready_s, self._goes_on, message)
            return
        if request is Peek.TAKE or (isinstance(request, Need) and request.ahead):  # sent by now
            self.hand_over()
            return
        if isinstance(request, Contribution):
            if self.called_off is not None:  # before it began
                message.void = True
                self.call_off(has_it_s)
                return
            nbytes = self.run.push_nbytes(self.index, request)
            if request.beside.goes_on:
                self.in_flight = True
                self.run.clock.at(ready_s, self._goes_on, message)
        self.run.send(self.index, ready_s, nbytes, self.run.arrived, message)

    def _goes_on(self, message: Message) -> None:
        """It has sent its contribution and does not wait, or looks after a step whether the answer has come."""
        if message.void:
            return
        request, now_s = message.request, self.run.clock.now_s
        if isinstance(request, Contribution):
            self.meter.sent(message.ready_s, request.steps, request.number)
        self.go_on(self.answer is not None and self.answer[2] <= now_s, NO_ANSWER, now_s)

    def hears(self, answer: Answer, told: Located, has_it_s: float) -> None:
        """It is answered: it goes on, or takes that when it comes to it."""
        if isinstance(answer, Cancel):
            self.call_off(has_it_s)
        elif isinstance(answer, Supply):
            self.supplied[kind_of(answer)] = answer, has_it_s
            self.hand_over()
        elif isinstance(answer, Grant) and self.in_flight:
            self.answer = answer, told, has_it_s
            self.hand_over()
        else:
            self.go_on(answer, told, has_it_s)

    def hand_over(self) -> None:
        """If it waits for what it needs, or for the answer to its last contribution, it has that, once it is decided."""
        if self.latest is None:
            return
        asked_s, request = self.latest.ready_s, self.latest.request
        if isinstance(request, Need):
            if (supplied := self.supplied.pop(kind_of(request), None)) is not None:
                self.meter.fetched(asked_s, supplied[1])
                self.go_on(supplied[0], NO_ANSWER, max(asked_s, supplied[1]))
        elif self.answer is not None and request is Peek.TAKE:
            (grant, told, has_it_s), self.answer, self.in_flight = self.answer, None, False
            self.meter.fetched(asked_s, has_it_s, self.meter.released_s)
            self.go_on(grant, told, max(asked_s, has_it_s))

    def ask_ahead(self, sent_s: float, need: Need) -> None:
        """It asks for what it needs at `sent_s` and goes on."""
        asked = self.ahead[kind_of(need)] = Message(self.index, self.incarnation, sent_s, need)
        self.run.send(self.index, sent_s, 0, self.run.arrived, asked)

    def asked_for(self, supply: Supply) -> object:
        """What it said to be given that."""
        asked = self.ahead.get(kind_of(supply), self.latest)
        return asked.request if asked is not None else None

    def call_off(self, listens_s: float) -> None:
        """It hears that its latest request is called off; what it waits for comes at `listens_s`."""
        assert self.called_off is not None and self.latest is not None, "there is a step to call off"
        (cancel, told, has_it_s), self.called_off = self.called_off, None
        heard_s = max(listens_s, has_it_s)
        message = self.latest
        made = message.request if isinstance(message.request, Contribution) else None
        if made is not None and message.ready_s <= heard_s and not message.void:
            self.meter.crossed(message.ready_s, made.steps, made.samples, made.number, heard_s)
        else:
            message.void = True
            self.meter.cancelled(heard_s)
            dropped = Abandoned(self.index, self.incarnation, made.batches if made is not None else 0)
            self.run.send(self.index, heard_s, 0, self.run.receive, dropped)
        self.go_on(cancel, told, heard_s)

    def stop(self, seat: Seat | None) -> None:
        """It works no more: what it had not sent yet is void. `seat`: where the server listens to it."""
        now_s = self.run.clock.now_s
        if self.latest is not None and self.latest.ready_s > now_s:
            self.latest.void = True
            self.meter.cut(now_s)
            self.meter.cancelled(now_s)
        else:
            self.cut_short(seat)
        for ahead in self.ahead.values():
            ahead.void = ahead.void or ahead.ready_s > now_s
        self.participant.end()

    def cut_short(self, seat: Seat | None) -> None:
        """Count what it is doing when the run ends up to that time, or the longest waits would be missing."""
        meter, now_s = self.meter, self.run.clock.now_s
        meter.cut(now_s)
        if self.state is not State.HERE or seat is None or self.latest is None:
            return
        if self.latest.request is Peek.TAKE and self.latest.ready_s < now_s:
            meter.fetched(self.latest.ready_s, now_s, now_s if seat.waiting is not None else None)
        elif seat.waiting is not None and not self.in_flight:
            meter.ended_held(now_s)
        elif self.latest.request is not None:
            computes = not isinstance(self.latest.request, Need)
            meter.ended_amid(now_s, self.latest.ready_s if computes else now_s)


def kind_of(one: Need | Supply) -> object:
    """What a need and its supply have in common. Rows of tables may be needed twice at a time: one of these ahead."""
    return one.ahead if isinstance(one, RowsRequest | RowsServed) else "data"
