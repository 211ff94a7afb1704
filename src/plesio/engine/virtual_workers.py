"""Simulated workers that compute nothing: they only take the time."""

from __future__ import annotations

from plesio.cluster import Cluster, Timetable
from plesio.engine.virtual_messages import Answer, Push, Request
from plesio.rules import Every


class TimedWorker:
    """Takes local steps as long as the strategy lets it go alone, then pushes; without end.

    Args:
        timetable: how long its steps take.
        every: the strategy's answer to how long a worker goes it alone.
        samples: samples a step.
        nbytes: what it sends.
    """

    def __init__(self, timetable: Timetable, every: Every, samples: int = 1, nbytes: int = 0) -> None:
        self._step_s = timetable.step_s
        self._due = every.due
        self._samples = samples
        self._nbytes = nbytes

    def begin(self, incarnation: int) -> None:
        """Nothing to build."""

    def go_on(self, answer: Answer, buffer: int, now_s: float) -> Request:
        """The next contribution, with the time its steps take."""
        time_s, steps = now_s, 0
        while True:
            time_s += self._step_s(time_s)
            steps += 1
            if self._due(steps, time_s - now_s):
                return Push(time_s, steps, steps * self._samples, 0, self._nbytes)

    def end(self) -> None:
        """Nothing to drop."""


def timed_workers(cluster: Cluster, every: Every, seed: int, samples: int = 1, nbytes: int = 0) -> list[TimedWorker]:
    """One for each worker of the cluster."""
    return [TimedWorker(timetable, every, samples, nbytes) for timetable in cluster.timetables(seed)]
