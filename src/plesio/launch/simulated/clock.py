"""Virtual time: it stands still while something is done, jumps to the next thing that is due, and ends exactly at a limit."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

TICKS = 10  # how many times in the time that a worker may be silent it is asked whether one is


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

    def repeat(self, first_s: float, every_s: float, action: Callable[[float], object]) -> None:
        """Call `action` with the time at `first_s`, and from then on whenever `every_s` have passed."""

        def act(_: None) -> None:
            action(self.now_s)
            self.repeat(self.now_s + every_s, every_s, action)

        if first_s < inf:
            self.at(first_s, act, None)

    def step(self) -> bool:
        """Jump to what is due next and do it; False if nothing is."""
        if not self._due:
            return False
        self.now_s, _, action, subject = heappop(self._due)
        action(subject)
        return True


class Silence:
    """Has it asked who is silent, for as long as something is on its way for longer than a worker may be silent, `silence_s`."""

    def __init__(self, clock: VirtualClock, silence_s: float, ask: Callable[[], None]) -> None:
        self._clock = clock
        self._silence_s = silence_s
        self._ask = ask
        self._until_s = 0.0
        self._asking = False

    def lasts_until(self, time_s: float) -> None:
        """Something is heard at `time_s`."""
        if self._silence_s < time_s - self._clock.now_s < inf:
            self._until_s = max(self._until_s, time_s)
            if not self._asking:
                self._asking = True
                self._clock.at(self._clock.now_s + self._silence_s, self._tick, None)

    def _tick(self, _: None) -> None:
        self._ask()
        self._asking = self._clock.now_s < self._until_s
        if self._asking:
            self._clock.at(self._clock.now_s + self._silence_s / TICKS, self._tick, None)
