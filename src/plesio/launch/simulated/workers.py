"""What a simulated worker is to the driver, what it says, and the one that computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from plesio.cluster import Timetable
from plesio.core.events import Cancel, Grant
from plesio.launch.one_process.greenlets import Peek
from plesio.protocol.worker import Aside, Contribution, Need, Supply
from plesio.strategy import Strategy
from plesio.transport.doorbell import Located

Request = Contribution | Need | Peek | None  # None: its training function returned
Answer = Grant | Cancel | Supply | bool
"""False: it goes on while an answer travels; True: that has come."""


@dataclass(slots=True, eq=False)
class Message:
    """A request on its way, sent at `ready_s`. `void`: it is never sent."""

    worker: int
    incarnation: int
    ready_s: float
    request: Request
    void: bool = False


class State(Enum):
    ABSENT = "absent"
    HERE = "here"
    FINISHED = "finished"


class Participant:
    """A simulated worker. `leaves_early`: its training function did not come to its end."""

    leaves_early = False

    def begin(self, incarnation: int) -> None:
        """A new process of this worker starts."""

    def go_on(self, answer: Answer, told: Located, now_s: float) -> tuple[float, Request]:
        """Go on from `answer`, had at `now_s`; when it sends something next, and what.

        `told` is what its process hears (nothing with data). After a
        Cancel the request before this one was never sent, or came to nothing.
        """
        raise NotImplementedError

    def end(self) -> None:
        """This process is over: it crashed or left, or the run is."""


class TimedWorker(Participant):
    """Takes local steps, of one sample, as long as `strategy` lets it go alone, then pushes; until its `last` step. One that
    `goes_on` while its answer travels looks after each step whether that has come."""

    def __init__(self, timetable: Timetable, strategy: Strategy, last: float = inf, goes_on: bool = False) -> None:
        self._step_s = timetable.step_s
        self._phases, self._after = strategy.phases, strategy.every.after
        self._last = last
        self._goes_on = goes_on
        self._done = self._latest = 0  # steps, and those of them sent last

    def begin(self, incarnation: int) -> None:
        self._in_flight = False
        self._begin_anew(0.0)

    def _begin_anew(self, now_s: float) -> None:
        self._began_s, self._worked_s = now_s, 0.0
        self._steps = self._adopted_at = 0
        self._owes = False  # another contribution, before it took the answer to the last

    def go_on(self, answer: Answer, told: Located, now_s: float) -> tuple[float, Request]:
        if isinstance(answer, bool):
            self._owes = self._is_due(now_s) and not answer
            if answer or self._owes:
                return now_s, Peek.TAKE
        else:
            assert isinstance(answer, Grant | Cancel), "it asks for nothing else"
            self._every = self._phases[told.answer.phase].every
            self._hear(answer, now_s)
        return self._work(now_s)

    def _hear(self, answer: Grant | Cancel, now_s: float) -> None:
        if isinstance(answer, Cancel):
            self._done -= self._latest
        if self._in_flight:
            self._in_flight, self._adopted_at = False, self._steps
        else:
            self._begin_anew(now_s)
        self._number, self._version = answer.number, answer.version
        self._granted = answer.steps if isinstance(answer, Grant) else 0

    def _is_due(self, now_s: float) -> bool:
        steps, left = self._steps, self._last - self._done
        if steps >= left or not steps or (self._in_flight and self._every.answered):
            return steps >= left
        early = max(0, self._adopted_at - 1) if self._every.answered else 0
        return self._every.due(steps - early, now_s - self._began_s, self._version, self._granted)

    def _work(self, now_s: float) -> tuple[float, Request]:
        if self._last <= self._done:
            return now_s, None
        while not (self._owes or self._is_due(now_s)):
            step_s = self._step_s(now_s)
            now_s += step_s
            self._worked_s += step_s
            self._steps += 1
            if self._in_flight:
                return now_s, Peek.LOOK
        return now_s, self._sent(now_s)

    def _sent(self, now_s: float) -> Contribution:
        """Its steps are done, and it goes on, unless they were the last."""
        steps = self._latest = self._steps
        self._done += steps
        self._in_flight = self._goes_on and self._done < self._last and self._version >= self._after
        number, worked_s, adopted_at = self._number + 1, self._worked_s, self._adopted_at
        self._begin_anew(now_s)
        return Contribution(number, steps, steps, worked_s=worked_s, aside=Aside(adopted_at, self._in_flight))
