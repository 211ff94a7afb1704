"""Who is a member, since when, and who has been silent for how long.

Theory. A seat (worker number) is empty or held by one incarnation. Joining with a higher incarnation number than any
before takes the seat and fences the older process. A member leaves by itself (finished), by dying, or by eviction: when
others wait for it and it has been silent for longer than `silence_s`, it is evicted, so that no wait is without end. So are
the last ones, once another has finished its work and for that long nobody was heard: the run waits for them. (That others
died says nothing: long local steps are long.)

Exactly once. A contribution is new if its incarnation holds the seat and its number is the seat's next. A worker sends
one after it heard of the one before, so numbers come in order and a lower one was answered already. Memory is constant a
worker, whatever is lost or repeated on the way.

| state   | Joined (higher incarnation) | Left (same incarnation) | silent too long while waited for, or left over |
| ------- | --------------------------- | ----------------------- | ---------------------------------------------- |
| empty   | member                      | -                       | -                                              |
| member  | member (older one fenced)   | empty                   | empty                                          |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import msgspec

from plesio.core.events import Effect, Verdict


class MembershipState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps: no seat, but which incarnations had one, and how far the slowest was."""

    slowest: int
    last_incarnation: dict[int, int]


@dataclass(slots=True, eq=False)
class Seat:
    """What the sequencer knows of one live worker.

    Attributes:
        clock: its answered contributions; a late joiner starts at the slowest's.
        computing: the version that its next contribution is based on; `before`: the one before that, which its first steps are
            computed from where it went on while its answer travelled.
        heard_s: when it last spoke or was told to go on.
        next_number: the only number that is new, see above.
        waiting: the number of the contribution whose answer it waits for (0: for the beginning); None: it computes.
        verdict, staleness: what that answer will say.
        arrived: the highest number that came in. A number that was called off may still come in.
        called_off: a step was called off, and its worker may not know yet.
        owed: what is done for it once the contribution that it is at is folded, or called off.
        weight: of the last contribution that counted.
        came_s: when its last contribution came; `period_s`: how long it took, without waiting for the answer before.
        answered_s: when it was last told to go on.
        samples: behind the last contribution that had any. A second optimizer's contribution is of the same samples.
    """

    worker: int
    incarnation: int
    clock: int
    computing: int
    heard_s: float
    before: int = 0
    next_number: int = 1
    waiting: int | None = None
    verdict: Verdict = Verdict.TAKEN
    staleness: int = 0
    arrived: int = 0
    called_off: bool = False
    owed: tuple[Effect, ...] = ()
    samples: int = 0
    weight: float = 0.0
    came_s: float = 0.0
    answered_s: float = 0.0
    period_s: float = 0.0

    def take_owed(self) -> tuple[Effect, ...]:
        owed, self.owed = self.owed, ()
        return owed


class Membership:
    """The live workers, the slowest clock among them and how many wait: both kept up to date, never searched for.

    >>> members = Membership(silence_s=5.0)
    >>> _ = members.join(0, 1, version=0, now_s=0.0)
    >>> [seat.worker for seat in members.silent(now_s=6.0)]
    [0]
    """

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.seats: dict[int, Seat] = {}
        self.slowest = 0
        self.waiting = 0
        self._at_slowest = 0  # how many seats are at that clock
        self._last_incarnation: dict[int, int] = {}
        self._finished_s: dict[int, float] = {}  # workers that finished: when

    @property
    def finished(self) -> int:
        """How many workers have finished their work."""
        return len(self._finished_s)

    @property
    def period_s(self) -> float:
        """How long members usually take to a contribution: the median of those that have sent one."""
        periods = sorted([seat.period_s for seat in self.seats.values() if seat.period_s])
        return periods[len(periods) // 2] if periods else 0.0

    def join(self, worker: int, incarnation: int, version: int, now_s: float) -> Seat | None:
        """Its seat; None if it, or a later incarnation, was seen before."""
        if incarnation <= self._last_incarnation.get(worker, 0):
            return None
        self._last_incarnation[worker] = incarnation
        self._finished_s.pop(worker, None)
        seat = Seat(worker, incarnation, self.slowest, version, now_s)
        self.seats[worker] = seat
        self._at_slowest += 1
        return seat

    def seat(self, worker: int, incarnation: int) -> Seat | None:
        """The seat that this incarnation holds; None if it holds none (any longer)."""
        seat = self.seats.get(worker)
        return seat if seat is not None and seat.incarnation == incarnation else None

    def leave(self, worker: int, incarnation: int, finished_s: float | None = None) -> Seat | None:
        """Empty the seat and return it; None if that incarnation did not hold it. `finished_s`: when, if its work is done."""
        seat = self.seat(worker, incarnation)
        if seat is None:
            return None
        del self.seats[worker]
        if finished_s is not None:
            self._finished_s[worker] = finished_s
        self.waiting -= seat.waiting is not None
        if seat.clock == self.slowest:
            self._one_fewer_at_slowest()
        return seat

    def pushed(self, seat: Seat, number: int, now_s: float, since_s: float) -> None:
        """`seat` completed a clock, begun at `since_s`, and waits for the answer to contribution `number`."""
        seat.period_s, seat.came_s = now_s - since_s, now_s
        seat.waiting = seat.arrived = number
        seat.called_off = False  # it sends the one after that
        seat.next_number = number + 1
        self.waiting += 1
        seat.clock += 1
        if seat.clock - 1 == self.slowest:
            self._one_fewer_at_slowest()

    def waits(self, seat: Seat) -> None:
        """`seat` has just come, and waits for the beginning."""
        seat.waiting = 0
        self.waiting += 1

    def begin_anew(self, version: int) -> None:
        """All clocks are 0 again, and every member goes on from `version`."""
        self.slowest, self._at_slowest = 0, len(self.seats)
        for seat in self.seats.values():
            seat.clock, seat.computing, seat.samples = 0, version, 0
            seat.weight = seat.period_s = 0.0  # other rules weigh otherwise, and take as long as they take

    def answered(self, seat: Seat, now_s: float) -> None:
        """`seat` goes on; while it waited it had nothing to say, so its silence is counted from now."""
        seat.waiting = None
        seat.heard_s = seat.answered_s = now_s
        self.waiting -= 1

    def _one_fewer_at_slowest(self) -> None:
        """Advance the slowest clock when no seat is at it; without seats it stays, for the next to join."""
        self._at_slowest -= 1
        if self._at_slowest == 0 and self.seats:
            clocks = [seat.clock for seat in self.seats.values()]
            self.slowest = min(clocks)
            self._at_slowest = clocks.count(self.slowest)

    def silent(self, now_s: float, for_s: float | None = None) -> list[Seat]:
        """Members that are computing, and were last heard more than `for_s` (`silence_s`) ago."""
        least_s = self.silence_s if for_s is None else for_s
        return [seat for seat in self.seats.values() if seat.waiting is None and now_s - seat.heard_s > least_s]

    def left_over(self, now_s: float) -> list[Seat]:
        """All members, if all of them are silent and others have finished, the last of these more than `silence_s` ago."""
        seats = self.silent(now_s)
        finished_s = max(self._finished_s.values(), default=now_s)
        return seats if len(seats) == len(self.seats) and now_s - finished_s > self.silence_s else []

    def state(self) -> MembershipState:
        return MembershipState(self.slowest, dict(self._last_incarnation))

    @classmethod
    def restore(cls, state: MembershipState, silence_s: float) -> Self:
        """Remove all members; each rejoins as a later incarnation."""
        members = cls(silence_s)
        members.slowest = state.slowest
        members._last_incarnation.update(state.last_incarnation)
        return members
