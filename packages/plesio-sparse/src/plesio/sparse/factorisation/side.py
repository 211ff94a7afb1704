"""One side of the matrix, the users or the items: who they are, and the row each has in the table."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import uintp
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled
from plesio.kernels.lanes import LANES
from plesio.sparse.factorisation.kernels import mix
from plesio.sparse.factorisation.ratings import Ids
from plesio.sparse.machine import numbers
from plesio.sparse.threads import by_shares, shares

SPREAD = 0.1  # standard deviation of the factors at first
_UNIT = np.float32(SPREAD * math.sqrt(3) / 2**63)
"""The factor that turns 64 random bits into a number of that deviation, and mean 0."""


class Side:
    """A row for everybody: the factors, filled up with zeros to whole cache lines, then a line for bias and AdaGrad state.

    Attributes:
        ids: whose each row is.
        met: which of the rows have been learnt from; where ids are the row numbers there may be gaps, which stay 0.
    """

    def __init__(self, factors: int, what: str = "ids") -> None:
        self.ids = Ids(what)
        self._factors = factors
        self._head = -(-factors // LANES) * LANES
        self._rows = 0
        self._room, self._room_met = self._zeros(0), np.zeros(0, bool)  # with rows for those who come later

    def __len__(self) -> int:
        return self._rows

    @property
    def table(self) -> NDArray[np.float32]:
        """(rows, a width of whole cache lines)."""
        return self._room[: self._rows]

    @property
    def met(self) -> NDArray[np.bool_]:
        return self._room_met[: self._rows]

    @property
    def factors(self) -> NDArray[np.float32]:
        return self.table[:, : self._factors]

    @property
    def biases(self) -> NDArray[np.float32]:
        return self.table[:, self._head]

    def learn(self, ids: NDArray[Any], rng: np.random.Generator, threads: int = 1) -> NDArray[np.uint32]:
        """The rows of `ids`; those never met before get one, of small random factors, bias 0 and state 1."""
        rows, key = self.ids.learn(ids), rng.integers(2**64, dtype=np.uint64)
        self._grow(len(self.ids))
        table, met = self.table, self.met
        cuts = shares(len(rows), threads)
        by_shares(cuts, lambda first, stop: _meet(rows, first, stop, met, table, key, self._factors, self._head))
        return rows

    def put(self, ids: NDArray[Any], solved: NDArray[np.float64]) -> NDArray[np.int64]:
        """The rows of `ids`, each there once, with these factors, then the bias, instead of what they had; state 1."""
        self.ids.learn(ids)
        self._grow(len(self.ids))
        rows, fresh = self.ids.rows(ids), self._zeros(len(ids))
        fresh[:, : self._factors], fresh[:, self._head : self._head + 2] = solved[:, :-1], 1
        fresh[:, self._head] = solved[:, -1]
        self.table[rows] = fresh
        self.met[rows] = True  # last: until then they are nobody's to those who read
        return rows

    def _grow(self, rows: int) -> None:
        """By half at least: rows that come a few at a time are not all copied for each."""
        if rows > len(self._room):
            room = max(rows, len(self._room) * 3 // 2)
            table, met = self._zeros(room), np.zeros(room, bool)
            table[: len(self)], met[: len(self)] = self.table, self.met
            self._room, self._room_met = table, met
        self._rows = rows

    def rows(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 for those never met."""
        rows, met = self.ids.rows(ids), self.met
        rows = np.where(rows < len(met), rows, -1)  # another thread has just learnt the id and makes its row
        return np.where((rows >= 0) & met[rows], rows, -1)

    def copy_of_table(self) -> NDArray[np.float32]:
        copy = self._zeros(len(self))
        copy[:] = self.table
        return copy

    def _zeros(self, rows: int) -> NDArray[np.float32]:
        width = self._head + LANES
        return numbers(rows * width).reshape(rows, width)


@compiled
def _meet(rows, first, stop, met, table, key, factors, head):
    """Uniformly distributed factors and a state of 1 for those never met. Threads that meet one at once write the same."""
    for at in range(uintp(first), uintp(stop)):
        row = uintp(rows[at])
        if not met[row]:
            for k in range(uintp(factors)):
                number = np.int64(mix(key + row * uintp(factors) + k))
                table[row, k] = np.float32(number) * _UNIT
            table[row, uintp(head + 1)] = 1
            met[row] = True
