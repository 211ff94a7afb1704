"""Virtual time: it stands still while something is done and jumps to the next thing that is due."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class VirtualClock:
    """A queue of what is due when. Order is exact: by time, then by who was planned first.

    >>> clock, seen = VirtualClock(), []
    >>> for time_s, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
    ...     clock.at(time_s, seen.append, name)
    >>> while clock.step():
    ...     pass
    >>> seen, clock.now_s
    (['a', 'b', 'c'], 2.0)
    """

    __slots__ = ("_due", "_planned", "now_s")

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
