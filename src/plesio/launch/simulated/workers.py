"""What a simulated worker is to the driver, what it says, and the one that computes nothing."""

from __future__ import annotations

from math import inf
from typing import Protocol

from plesio.cluster import Cluster, Timetable
from plesio.core.events import Cancel, Grant
from plesio.protocol.worker import Contribution, LeaseReply, LeaseRequest
from plesio.strategy.answers import Every

Request = Contribution | LeaseRequest | None
"""What a worker sends; None: its training function returned."""
Answer = Grant | Cancel | LeaseReply


class Message:
    """A request on its way, sent at `ready_s`. `void`: it is never sent."""

    __slots__ = ("incarnation", "ready_s", "request", "void", "worker")

    def __init__(self, worker: int, incarnation: int, ready_s: float, request: Request) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.ready_s = ready_s
        self.request = request
        self.void = False


class Participant(Protocol):
    """A simulated worker."""

    def begin(self, incarnation: int) -> None:
        """A new process of this worker starts."""
        ...

    def go_on(self, answer: Answer, buffer: int, now_s: float) -> tuple[float, Request]:
        """Go on from `answer`, had at `now_s`; when it sends something next, and what.

        `buffer` is what the folder published for it (-1 with data: the parameters are the same as before). After a
        Cancel the request before this one was never sent, or came to nothing.
        """
        ...

    def end(self) -> None:
        """This process is over: it crashed or left, or the run is."""
        ...


class TimedWorker:
    """Takes local steps as long as the strategy lets it go alone, then pushes; without end, or until its `last` step.

    Args:
        timetable: how long its steps take.
        every: the strategy's answer to how long a worker trains on its own.
        samples: samples a step.
        last: after how many steps it returns.
    """

    __slots__ = ("_done", "_due", "_last", "_latest", "_samples", "_step_s")

    def __init__(self, timetable: Timetable, every: Every, samples: int = 1, last: float = inf) -> None:
        self._step_s = timetable.step_s
        self._due = every.due
        self._samples = samples
        self._last = last
        self._done = self._latest = 0  # steps, and those of them sent last

    def begin(self, incarnation: int) -> None:
        """Nothing to build."""

    def go_on(self, answer: Answer, buffer: int, now_s: float) -> tuple[float, Request]:
        """The next contribution, with the time its steps take."""
        assert not isinstance(answer, LeaseReply), "it asks for no data"
        if isinstance(answer, Cancel):
            self._done -= self._latest
        left = self._last - self._done
        if left <= 0:
            return now_s, None
        time_s, steps = now_s, 0
        while True:
            time_s += self._step_s(time_s)
            steps += 1
            if steps >= left or self._due(steps, time_s - now_s):
                self._done, self._latest = self._done + steps, steps
                return time_s, Contribution(answer.number + 1, steps, steps * self._samples)

    def end(self) -> None:
        """Nothing to drop."""


def timed_workers(cluster: Cluster, every: Every, seed: int, samples: int = 1) -> list[TimedWorker]:
    """One for each worker of the cluster."""
    return [TimedWorker(timetable, every, samples) for timetable in cluster.timetables(seed)]
