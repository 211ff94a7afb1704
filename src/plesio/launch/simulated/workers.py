"""What a simulated worker is to the driver, what it says, and the one that computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from plesio.cluster import Timetable
from plesio.core.events import Cancel, Grant
from plesio.protocol.worker import Contribution, LeaseReply, LeaseRequest
from plesio.strategy.answers import Every
from plesio.transport.doorbell import Located

Request = Contribution | LeaseRequest | None  # what a worker sends; None: its training function returned
Answer = Grant | Cancel | LeaseReply


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
    """A simulated worker."""

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


@dataclass(slots=True, eq=False)
class Process:
    """A participant and where it stands."""

    participant: Participant
    incarnation: int
    state: State = State.ABSENT
    latest: Message | None = None
    called_off: tuple[Cancel, Located, float] | None = None
    """A cancellation that came while it waited for data, with its answer, and when that is there."""


class TimedWorker(Participant):
    """Takes local steps, of one sample, as long as `every` lets it go alone, then pushes; until its `last` step."""

    def __init__(self, timetable: Timetable, every: Every, last: float = inf) -> None:
        self._step_s = timetable.step_s
        self._due = every.due
        self._last = last
        self._done = self._latest = 0  # steps, and those of them sent last

    def go_on(self, answer: Answer, told: Located, now_s: float) -> tuple[float, Request]:
        assert not isinstance(answer, LeaseReply), "it asks for no data"
        if isinstance(answer, Cancel):
            self._done -= self._latest
        left = self._last - self._done
        granted = answer.steps if isinstance(answer, Grant) else 0
        if left <= 0:
            return now_s, None
        time_s, steps = now_s, 0
        while True:
            time_s += self._step_s(time_s)
            steps += 1
            if steps >= left or self._due(steps, time_s - now_s, answer.version, granted):
                self._done, self._latest = self._done + steps, steps
                return time_s, Contribution(answer.number + 1, steps, steps)
