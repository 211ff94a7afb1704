"""What a simulated worker and its server's arithmetic are to the driver, and the ones that compute nothing."""

from __future__ import annotations

from math import inf
from typing import Protocol

from plesio.cluster import Cluster, Timetable
from plesio.core.events import Cancel, Fold
from plesio.launch.simulated.messages import Answer, Finish, Push, Request
from plesio.protocol.worker import Settings
from plesio.strategy.answers import Every


class Participant(Protocol):
    """A simulated worker."""

    def begin(self, incarnation: int) -> None:
        """A new process of this worker starts."""
        ...

    def go_on(self, answer: Answer, buffer: int, now_s: float) -> Request:
        """Go on from `answer`, had at `now_s`; what it sends next, and when.

        `buffer` is what the folder published for it (-1 with data: the parameters are the same as before). After a
        Cancel the request before this one was never sent, or came to nothing.
        """
        ...

    def end(self) -> None:
        """This process is over: it crashed or left, or the run is."""
        ...


class Folder(Protocol):
    """The tensor side at the server, as far as it is needed here (see `plesio.tensors.folding.Folder`)."""

    def hold(self, worker: int, weight: float) -> None: ...

    def fold(self, fold: Fold) -> None: ...

    def publish(self, reader: int) -> int: ...

    def forget(self, worker: int) -> None: ...

    def set_groups(self, worker: int, groups: tuple[Settings, ...]) -> None: ...


class TimedWorker:
    """Takes local steps as long as the strategy lets it go alone, then pushes; without end, or until its `last` step.

    Args:
        timetable: how long its steps take.
        every: the strategy's answer to how long a worker trains on its own.
        samples: samples a step.
        nbytes: what it sends.
        last: after how many steps it returns.
    """

    __slots__ = ("_done", "_due", "_last", "_latest", "_nbytes", "_samples", "_step_s")

    def __init__(
        self, timetable: Timetable, every: Every, samples: int = 1, nbytes: int = 0, last: float = inf
    ) -> None:
        self._step_s = timetable.step_s
        self._due = every.due
        self._samples = samples
        self._nbytes = nbytes
        self._last = last
        self._done = self._latest = 0  # steps, and those of them sent last

    def begin(self, incarnation: int) -> None:
        """Nothing to build."""

    def go_on(self, answer: Answer, buffer: int, now_s: float) -> Request:
        """The next contribution, with the time its steps take."""
        if isinstance(answer, Cancel):
            self._done -= self._latest
        left = self._last - self._done
        if left <= 0:
            return Finish(now_s)
        time_s, steps = now_s, 0
        while True:
            time_s += self._step_s(time_s)
            steps += 1
            if steps >= left or self._due(steps, time_s - now_s):
                self._done, self._latest = self._done + steps, steps
                return Push(time_s, steps, steps * self._samples, 0, self._nbytes)

    def end(self) -> None:
        """Nothing to drop."""


def timed_workers(cluster: Cluster, every: Every, seed: int, samples: int = 1, nbytes: int = 0) -> list[TimedWorker]:
    """One for each worker of the cluster."""
    return [TimedWorker(timetable, every, samples, nbytes) for timetable in cluster.timetables(seed)]


class NoFolder:
    """Folds nothing: for runs that ask for the time only."""

    def hold(self, worker: int, weight: float) -> None:
        """Nothing to add."""

    def fold(self, fold: Fold) -> None:
        """Nothing to move."""

    def publish(self, reader: int) -> int:
        """The one buffer there is not."""
        return 0

    def forget(self, worker: int) -> None:
        """Nothing was kept."""

    def set_groups(self, worker: int, groups: tuple[Settings, ...]) -> None:
        """Nothing is stepped."""
