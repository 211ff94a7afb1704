"""One side of the matrix, the users or the items: who they are, and the row each has in the table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.hogwild.factorisation.ratings import Ids
from plesio.hogwild.lanes import LANES, LINE_BYTES

SPREAD = 0.1
"""Standard deviation of the factors at first."""


class Side:
    """A row for everybody: the factors, filled up with zeros to whole cache lines, then a line for bias and AdaGrad state.

    Attributes:
        ids: whose each row is.
        table: the rows.
        met: which of them have been learnt from; where ids are the row numbers there may be gaps, which stay 0.
    """

    def __init__(self, factors: int) -> None:
        self.ids = Ids()
        self._factors = factors
        self._head = -(-factors // LANES) * LANES
        self.table = self._zeros(0)
        self.met = np.zeros(0, bool)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def factors(self) -> NDArray[np.float32]:
        """(rows, factors)."""
        return self.table[:, : self._factors]

    @property
    def biases(self) -> NDArray[np.float32]:
        """(rows,)."""
        return self.table[:, self._head]

    def learn(self, ids: NDArray[Any], rng: np.random.Generator) -> NDArray[np.uint32]:
        """The rows of `ids`; those never met before get one, of small random factors, bias 0 and state 1."""
        rows = self.ids.learn(ids)
        met = np.zeros(len(self.ids), bool)
        met[rows] = True
        met[: len(self.met)] |= self.met
        old, table = np.flatnonzero(self.met), self._zeros(len(met))
        table[:, : self._factors] = rng.standard_normal((len(met), self._factors), np.float32) * np.float32(SPREAD)
        table[:, self._head + 1] = 1
        table[~met] = 0
        table[old] = self.table[old]
        self.table, self.met = table, met
        return rows

    def rows(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 for those never met."""
        rows = self.ids.rows(ids)
        return np.where((rows >= 0) & self.met[rows], rows, -1)

    def copy_of_table(self) -> NDArray[np.float32]:
        """For a trial, or to come back to."""
        copy = self._zeros(len(self))
        copy[:] = self.table
        return copy

    def _zeros(self, rows: int) -> NDArray[np.float32]:
        """A table that begins where a cache line does."""
        width = self._head + LANES
        memory = np.zeros(rows * width + LANES, np.float32)
        start = -memory.ctypes.data % LINE_BYTES // 4
        return memory[start : start + rows * width].reshape(rows, width)
