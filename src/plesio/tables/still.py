"""The rows of a store as they were at one moment, while it goes on: an evaluation reads for long.

A key's values are copied before it steps for the first time since then. Whoever reads looks there first. A key without a row is
copied, too, for it may be born. The store gives no memory of rows back that lived at that moment.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from plesio.tables.distinct import Distinct

Pull = Callable[[NDArray[np.int64], NDArray[np.float32], int], NDArray[np.int64]]


class Still:
    """Rows of width `dim` at `clock`; `pull` writes the values of keys, as they are now and by such a clock, into an array."""

    def __init__(self, dim: int, clock: int, pull: Pull) -> None:
        self.clock, self._pull = clock, pull
        self._stepped = Distinct()
        self._values = np.empty((0, dim), np.float32)

    def keep(self, keys: NDArray[np.int64]) -> None:
        """These keys are about to step."""
        known = len(self._stepped)
        self._stepped.add(keys)
        count = len(self._stepped)
        if count > len(self._values):
            self._values.resize((2 * count, self._values.shape[1]), refcheck=False)
        self._pull(self._stepped.keys[known:], self._values[known:count], self.clock)

    def read(self, keys: NDArray[np.int64], out: NDArray[np.float32]) -> NDArray[np.int64]:
        """Write the values of each key at that moment into `out`, (n, dim); the places that they have now."""
        places = self._pull(keys, out, self.clock)
        kept = self._stepped.find(keys)
        out[kept >= 0] = self._values[kept[kept >= 0]]
        return places
