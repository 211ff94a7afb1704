"""How fast each worker steps, for strategies that let the slow go alone for fewer steps."""

from __future__ import annotations

from plesio.strategy.answers import Every

KEPT = 0.5
"""Of a pace, when the next one is measured."""


class Paces:
    """The workers' measured paces, in steps a second, and how many steps `every` allows for them."""

    def __init__(self, every: Every) -> None:
        self._every = every
        self._paces: dict[int, float] = {}

    def took(self, worker: int, steps: int, seconds: float) -> None:
        """A worker took so many steps in that time."""
        if seconds > 0.0:
            pace = steps / seconds
            self._paces[worker] = KEPT * self._paces.get(worker, pace) + (1.0 - KEPT) * pace

    def allowed(self, worker: int) -> int:
        """How many it may take; 0 (as the strategy says) until it was measured."""
        if worker not in self._paces:
            return 0
        return self._every.grants(self._paces[worker], max(self._paces.values()))

    def forget(self, worker: int) -> None:
        """It is gone."""
        self._paces.pop(worker, None)
