"""What a factorisation is given: triples checked, and users and items, whatever they are called, numbered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.errors import ConfigurationError
from plesio.sparse.threads import by_shares, shares

BLOCK = 1 << 15  # ratings in one go: as float64 they fit a cache near the core
LARGEST = 2**32 - 2
SPARSE = 8  # whole numbers are row numbers as they are, unless that wastes more than this many rows a rating


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


def weighed(given: tuple[Any, Any, Any], sample_weight: Any) -> tuple[Any, Any, Any, NDArray[np.float32] | None]:
    """Users, items and ratings with the weight of each, without those that weigh nothing; all weigh 1 if there is None.

    Raises ConfigurationError: not a weight for each, one that is negative or not finite in float32, or nothing but zeros.
    """
    if sample_weight is None:
        return *given, None
    weights = finite(sample_weight, "weight")
    if len(weights) != len(given[0]):
        raise ConfigurationError(
            f"sample_weight has {len(weights)} entries for {len(given[0])} ratings; give one each."
        )
    there = weights > 0
    if (weights < 0).any() or not there.any():
        raise ConfigurationError(
            f"the weights are {weights.min():g} to {weights.max():g}; allowed are 0 (leaves a rating out) and above, and not "
            "0 for all."
        )
    users, items, ratings = (None if one is None else one[there] for one in given)
    return users, items, ratings, weights[there]


def column(ids: Any, what: str) -> NDArray[Any]:
    """One-dimensional ids: whole numbers (also when stored as floats), or anything that can be sorted, such as strings.

    Raises ConfigurationError: ids of several types, or missing ones.
    """
    array = np.asarray(ids) if hasattr(ids, "dtype") else np.asarray(ids, object)  # else NumPy makes words of numbers
    if array.ndim != 1:
        raise ConfigurationError(f"{what} has shape {array.shape}; allowed: one dimension.")
    if array.dtype.kind in "OT":
        array = _of_one_type(array.astype(object), what)
    if np.ma.is_masked(ids) or (array.dtype.kind in "mM" and np.isnat(array).any()):
        raise ConfigurationError(f"{what} holds missing ids (NaT, or masked); leave those rows out.")
    if array.dtype.kind == "f":
        exact = 2.0 ** (np.finfo(array.dtype).nmant + 1)
        if not (np.abs(array) <= exact).all() or (array != np.floor(array)).any():
            raise ConfigurationError(
                f"{what} holds numbers that are not whole, such as NaN, or not exact: give whole numbers."
            )
        return array.astype(np.int64)
    return array


def _of_one_type(ids: NDArray[Any], what: str) -> NDArray[Any]:
    """Numbers as an array of numbers, anything else as it is."""
    types = {type(one.item() if isinstance(one, np.generic) else one).__name__ for one in ids}
    if (len(types) > 1 and types != {"int", "float"}) or types & {"NoneType", "NAType", "NaTType"}:
        raise ConfigurationError(
            f"{what} holds ids of type {' and '.join(sorted(types))}; allowed is one type, and no missing id (None, NaN, NaT): "
            "convert them, or leave those rows out."
        )
    plain = types <= {"int", "float"} or isinstance(ids[0], np.generic)
    return np.asarray(ids.tolist()) if plain else ids


def _type_of(ids: NDArray[Any]) -> str:
    """In words; words of any length are one type."""
    return ids.dtype.name if ids.dtype.kind in "iumM" else type(ids[:1].tolist()[0]).__name__


def finite(numbers: ArrayLike, what: str = "rating") -> NDArray[np.float32]:
    """Ratings, or weights, as float32. Raises ConfigurationError, with the place, if one is NaN or infinite there."""
    array = np.asarray(numbers)
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise ConfigurationError(f"{what}s have shape {array.shape} and type {array.dtype}; allowed: n numbers.")
    with np.errstate(over="ignore"):
        short = array.astype(np.float32, copy=False)
    if not np.isfinite(short).all():
        at = int(np.flatnonzero(~np.isfinite(short))[0])
        raise ConfigurationError(f"{what} {at} is {array[at]}; {what}s must be finite numbers: drop or repair it.")
    return short


def moments(ratings: NDArray[np.float32], weights: NDArray[np.float32] | None = None) -> tuple[float, float]:
    """Mean and standard deviation, weighted if there are weights, in one pass of blocks that stay in the cache.

    A deviation of 0 is 0 exactly.

    Not by a scalar product: BLAS takes threads of its own for it, whose number decides the last bits.

    >>> moments(np.array([1, 2, 3, 4], np.float32))
    (2.5, 1.118033988749895)
    """
    origin, total, squares = float(ratings[0]), 0.0, 0.0
    memory = np.empty(min(BLOCK, len(ratings)))
    for start in range(0, len(ratings), BLOCK):
        some = ratings[start : start + BLOCK]
        block = np.subtract(some, origin, out=memory[: len(some)], dtype=np.float64)
        parts = block if weights is None else block * weights[start : start + BLOCK]
        total += float(parts.sum())
        squares += float(np.multiply(block, parts, out=block).sum())
    whole = weight_of(ratings, weights)
    mean = total / whole
    return origin + mean, math.sqrt(max(squares / whole - mean**2, 0.0))


def weight_of(ratings: NDArray[np.float32], weights: NDArray[np.float32] | None) -> float:
    """Of all ratings; each weighs 1 if there are no weights."""
    return float(len(ratings) if weights is None else weights.sum(dtype=np.float64))


def standardise(ratings: NDArray[np.float32], mean: float, deviation: float, threads: int) -> None:
    """Bring them to mean 0 and deviation 1, where they are."""

    def some(first: int, stop: int) -> None:
        ratings[first:stop] -= np.float32(mean)
        ratings[first:stop] *= np.float32(1 / deviation)

    by_shares(shares(len(ratings), threads), some)


class Ids:
    """Numbers rows from 0. Whole numbers are their own where that wastes little; of anything else, what comes at once is sorted.

    >>> ids = Ids("users")
    >>> ids.learn(np.array(["bea", "ada", "bea"])).tolist()
    [1, 0, 1]
    >>> ids.rows(np.array(["bea", "cyd"])).tolist()  # nobody knows cyd
    [1, -1]

    Attributes:
        names: whose each row is.
    """

    def __init__(self, what: str = "ids") -> None:
        self._what = what
        self.names: NDArray[Any] = np.arange(0)
        self._row_of: dict[Any, int] | None = None  # None where each is its row's number

    def __len__(self) -> int:
        return len(self.names)

    def learn(self, ids: NDArray[Any]) -> NDArray[np.uint32]:
        """Give those that are new the next rows; the rows of all.

        Raises ConfigurationError: ids of another type, that cannot be sorted, or more than 32 bits can number.
        """
        ids = self.as_known(ids)
        own = self._row_of is None and ids.dtype.kind in "iu"
        if own and ids.min() >= 0 and ids.max() < SPARSE * len(ids):
            new = np.arange(len(self), int(ids.max()) + 1)
        else:
            new = self._unknown(ids)
            if self._row_of is None:
                self._row_of = dict(zip(self.names.tolist(), range(len(self)), strict=True))
            self._row_of.update(zip(new.tolist(), range(len(self), len(self) + len(new)), strict=True))
        if len(self) + len(new) > LARGEST:
            raise ConfigurationError(f"there are over {LARGEST:,} ids, more than can be numbered in 32 bits.")
        self.names = np.concatenate([self.names, new]) if len(self) else new
        if self._row_of is None:
            return ids.astype(np.uint32)
        return np.fromiter((self._row_of[one] for one in ids.tolist()), np.uint32, count=len(ids))

    def _unknown(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Those without a row, each once, in order."""
        try:
            new = np.unique(ids)
        except TypeError as error:
            raise ConfigurationError(f"ids cannot be sorted ({error}); make them all words or all numbers.") from error
        new = new[self.rows(new) < 0]
        return new.astype({"i": np.int64, "u": np.uint64}.get(new.dtype.kind, new.dtype), copy=False)

    def rows(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The row of each id, -1 for those unknown. Raises ConfigurationError: ids of another type than those known."""
        ids = self.as_known(ids)
        if not len(self):
            return np.full(len(ids), -1)
        if self._row_of is None:
            return np.where((ids >= 0) & (ids < len(self)), ids, -1) if len(ids) else np.zeros(0, np.int64)
        return np.fromiter((self._row_of.get(one, -1) for one in ids.tolist()), np.int64, count=len(ids))

    def as_known(self, ids: NDArray[Any]) -> NDArray[Any]:
        """`ids` in the type of those known. Raises ConfigurationError if that would change one of them."""
        names = self.names
        if not len(names) or not len(ids):
            return ids
        kinds = {names.dtype.kind, ids.dtype.kind}
        if kinds <= {"i", "u"} or kinds in ({"M"}, {"m"}):
            cast = ids.astype(names.dtype, copy=False)
            if cast is ids or (cast == ids).all():
                return cast
        elif _type_of(names) == _type_of(ids):
            return ids
        raise ConfigurationError(
            f"{self._what} are {_type_of(ids)}, those learnt are {_type_of(names)}: give ids of that type."
        )
