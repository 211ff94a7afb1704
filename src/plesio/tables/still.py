"""The rows of a store as they were at one moment, while it goes on: an evaluation reads for long.

A key's values are copied before it steps for the first time since then, and read from the copy. A key without a row is copied,
too, for it may be born. Rows that lived at that moment keep their memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from plesio.tables.distinct import Distinct

Pull = Callable[[NDArray[np.int64], NDArray[np.float32], int], NDArray[np.int64]]


class Still:
    """Rows of width `dim` at `clock`; `pull` is that of their store."""

    def __init__(self, dim: int, clock: int, pull: Pull) -> None:
        self.clock, self._pull = clock, pull
        self._stepped = Distinct()
        self._values = np.empty((0, dim), np.float32)

    def keep(self, keys: NDArray[np.int64]) -> None:
        """Copy these, which are about to step."""
        known = len(self._stepped)
        self._stepped.add(keys)
        count = len(self._stepped)
        if count > len(self._values):
            self._values.resize((2 * count, self._values.shape[1]), refcheck=False)
        self._pull(self._stepped.keys[known:], self._values[known:count], self.clock)

    def read(self, keys: NDArray[np.int64], out: NDArray[np.float32]) -> NDArray[np.int64]:
        """As `Store.pull`, with the values of that moment and the places of now."""
        places = self._pull(keys, out, self.clock)
        kept = self._stepped.find(keys)
        out[kept >= 0] = self._values[kept[kept >= 0]]
        return places
