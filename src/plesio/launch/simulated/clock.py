"""Virtual time: it stands still while something is done, jumps to the next thing that is due, and ends exactly at a limit."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import msgspec

from plesio.observe.summary import limit_reached


class VirtualClock:
    """A queue of what is due when. Order is exact: by time, then by who was planned first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[Any], object], Any]] = []
        self._planned = 0

    def at(self, time_s: float, action: Callable[[Any], object], subject: Any) -> None:
        """Do `action(subject)` at `time_s`, which is not before now."""
        assert time_s >= self.now_s, f"planned for {time_s!r} s, but it is {self.now_s!r} s already"
        self._planned += 1
        heappush(self._due, (time_s, self._planned, action, subject))

    def step(self) -> bool:
        """Jump to what is due next and do it; False if nothing is."""
        if not self._due:
            return False
        self.now_s, _, action, subject = heappop(self._due)
        action(subject)
        return True


class Limits(msgspec.Struct, frozen=True):
    """When a run ends before its workers do: the first that is reached; steps, samples, contributions of all together."""

    seconds: float = float("inf")
    steps: float = float("inf")
    samples: float = float("inf")
    contributions: float = float("inf")

    def reached(self, steps: int, samples: int, contributions: int) -> str:
        """Which of the counts is, in words; empty if none."""
        if steps >= self.steps:
            return limit_reached("steps", self.steps)
        if samples >= self.samples:
            return limit_reached("samples", self.samples)
        if contributions >= self.contributions:
            return limit_reached("contributions", self.contributions)
        return ""


NO_LIMITS = Limits()
