"""What a factorisation is given: triples checked, and users and items, whatever they are called, numbered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.errors import ConfigurationError
from plesio.sparse.threads import by_shares, shares

BLOCK = 1 << 15
"""Ratings in one go: as float64 they fit a cache near the core."""
LARGEST = 2**32 - 2
SPARSE = 8
"""Whole numbers are row numbers as they are, unless that wastes more than this many rows a rating."""


def triples(users: Any, items: Any, ratings: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32] | None]:
    """Users, items and ratings as three arrays of equal length; or all of them in `users`, as an (n, 3) array or sparse.

    Raises ConfigurationError: other shapes, no ratings at all, or a rating that is not finite in float32.
    """
    if items is None and hasattr(users, "tocoo"):
        matrix = users.tocoo()
        users, items, ratings = matrix.row, matrix.col, matrix.data
    elif items is None:
        table = np.asarray(users)
        if table.ndim != 2 or table.shape[1] != 3:
            raise ConfigurationError(
                f"got one array of shape {table.shape}; give users, items and ratings, an array of shape (n, 3), "
                "or a sparse matrix."
            )
        users, items, ratings = table.T
    users, items = column(users, "users"), column(items, "items")
    ratings = None if ratings is None else finite(ratings)
    lengths = {len(one) for one in (users, items, ratings) if one is not None}
    if len(lengths) > 1 or lengths == {0}:
        found = ", ".join(f"{len(one)}" for one in (users, items, ratings) if one is not None)
        raise ConfigurationError(f"users, items and ratings have {found} entries; allowed: equally many, at least one.")
    return users, items, ratings


def column(ids: Any, what: str) -> NDArray[Any]:
    """One-dimensional ids: whole numbers (also when stored as floats), or anything that can be sorted, such as strings."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ConfigurationError(f"{what} has shape {array.shape}; allowed: one dimension.")
    if array.dtype.kind == "f":
        whole = array.astype(np.int64, copy=False) if np.isfinite(array).all() else None
        if whole is None or (whole != array).any():
            raise ConfigurationError(f"{what} holds numbers that are not whole, such as NaN; ids are whole or words.")
        return whole
    return array


def finite(ratings: ArrayLike) -> NDArray[np.float32]:
    """Ratings as float32. Raises ConfigurationError, with the place, if one is NaN or infinite there."""
    array = np.asarray(ratings)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise ConfigurationError(f"ratings have shape {array.shape} and type {array.dtype}; allowed: n numbers.")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        at = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ConfigurationError(f"rating {at} is {array[at]}; ratings must be finite numbers: drop or repair it.")
    return numbers


def moments(ratings: NDArray[np.float32]) -> tuple[float, float]:
    """Mean and standard deviation, in one pass of blocks that stay in the cache; a deviation of 0 is 0 exactly.

    Not by a scalar product: BLAS takes threads of its own for it, whose number decides the last bits.

    >>> moments(np.array([1, 2, 3, 4], np.float32))
    (2.5, 1.118033988749895)
    """
    origin, total, squares = float(ratings[0]), 0.0, 0.0
    memory = np.empty(min(BLOCK, len(ratings)))
    for start in range(0, len(ratings), BLOCK):
        some = ratings[start : start + BLOCK]
        block = np.subtract(some, origin, out=memory[: len(some)], dtype=np.float64)
        total += float(block.sum())
        squares += float(np.square(block, out=block).sum())
    mean = total / len(ratings)
    return origin + mean, math.sqrt(max(squares / len(ratings) - mean**2, 0.0))


def standardise(ratings: NDArray[np.float32], mean: float, deviation: float, threads: int) -> None:
    """Bring them to mean 0 and deviation 1, where they are."""

    def some(first: int, stop: int) -> None:
        ratings[first:stop] -= np.float32(mean)
        ratings[first:stop] *= np.float32(1 / deviation)

    by_shares(shares(len(ratings), threads), some)


class Ids:
    """Numbers rows from 0. Whole numbers are their own where that wastes little; anything else is sorted first.

    >>> ids = Ids()
    >>> ids.learn(np.array(["bea", "ada", "bea"])).tolist()
    [1, 0, 1]
    >>> ids.rows(np.array(["bea", "cyd"])).tolist()  # nobody knows cyd
    [1, -1]
    """

    def __init__(self, names: NDArray[Any] | None = None) -> None:
        self.names = np.arange(0) if names is None else names
        self._order: NDArray[np.int64] | None = None  # of the names; None where each is its row's number
        if not np.array_equal(self.names, np.arange(len(self.names))):
            self._order = np.argsort(self.names, kind="stable")

    def __len__(self) -> int:
        return len(self.names)

    def learn(self, ids: NDArray[Any]) -> NDArray[np.uint32]:
        """Give those that are new the next rows; the rows of all.

        Raises ConfigurationError: ids that cannot be sorted, or more than 32 bits can number.
        """
        if self._order is None and ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < SPARSE * len(ids):
            if ids.max() >= len(self):
                self.names = np.arange(int(ids.max()) + 1)
            return ids.astype(np.uint32)
        try:
            new = np.unique(ids)
        except TypeError as error:
            raise ConfigurationError(f"ids cannot be sorted ({error}); make them all words or all numbers.") from error
        new = new[self.rows(new) < 0]
        if len(self) + len(new) > LARGEST:
            raise ConfigurationError(f"there are over {LARGEST:,} ids, more than can be numbered in 32 bits.")
        self.__init__(np.concatenate([self.names, new]) if len(self) else new)  # type: ignore[misc]
        return self.rows(ids).astype(np.uint32)

    def rows(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 for those unknown."""
        if not len(self):
            return np.full(len(ids), -1)
        numbers = ids.dtype.kind in "iu"
        if self._order is None:
            return (
                np.where((ids >= 0) & (ids < len(self)), ids, -1).astype(np.int64) if numbers else np.full(len(ids), -1)
            )
        if numbers != (self.names.dtype.kind in "iu"):
            return np.full(len(ids), -1)
        try:
            at = self._order[np.searchsorted(self.names, ids, sorter=self._order).clip(max=len(self) - 1)]
        except TypeError:  # they cannot be compared to any that is known
            return np.full(len(ids), -1)
        return np.where(self.names[at] == ids, at, -1).astype(np.int64)
