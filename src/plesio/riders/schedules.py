"""How far each worker's learning-rate schedules are, for a process that goes on where another ended."""

from __future__ import annotations

from typing import Any

from plesio.core.events import Count
from plesio.riders.rider import Half, Pushing, Rider
from plesio.tensors.optimizer_spec import Unwritten, number

Stands = tuple[Count, float]
"""(how often its schedules were called, the learning rate)"""
NOWHERE = (0, 0.0)


class Schedules(Rider):
    """Where the schedules of the worker in each seat are."""

    name = "schedules"
    said = Stands

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.restore([NOWHERE] * workers)

    def told(self, worker: int, value: Stands) -> None:
        self._coming[worker] = value

    def answered(self, worker: int) -> None:
        self._made[worker] = self._coming[worker]

    def again(self, worker: int) -> None:
        self._coming[worker] = self._before[worker] = self._made[worker]

    def beginning(self, worker: int) -> Stands:
        return self._before[worker]

    def kept(self) -> list[Stands]:
        return list(self._made)

    def restore(self, kept: list[Stands]) -> None:
        stands = [(calls, rate) for calls, rate in [*kept, *[NOWHERE] * self.workers][: self.workers]]
        self._made, self._coming, self._before = list(stands), list(stands), stands


class Scheduling(Half):
    """A worker's schedules: `calls` so far, also before the run was resumed, and the learning rate then (0: it was not)."""

    heard = Stands

    def __init__(self) -> None:
        self.calls = 0
        self.rate_before = 0.0
        self._said_calls = 0
        self._said_rate: Any = 0.0

    def take(self, pushing: Pushing) -> Stands | None:
        """Where they are, if that is new."""
        rate = pushing.optimizer.param_groups[0].get("lr", 0.0)
        if self._said_calls == self.calls and self._said_rate == rate:
            return None
        self._said_calls, self._said_rate = self.calls, number(rate, Unwritten)
        return self.calls, float(rate)

    def lost(self) -> None:
        self._said_calls, self._said_rate = 0, 0.0

    def hear(self, value: Stands) -> None:
        self.calls, self.rate_before = value
