"""Schedules without conflicts: many threads, and yet the same bits for any number of them.

`colour` puts the examples of a batch into groups that share no parameter: within a group the order does not matter,
between groups threads wait for each other. An example's group comes after those of all earlier examples it shares a
parameter with, so the result is the very one of doing them one by one (serial equivalence, as in Cyclades:
Pan et al., 2016). For ratings see the grid of `plesio.sparse.factorisation.layout`.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

NARROW = 8
"""Groups of fewer rows than this are not worth the threads' meeting: neighbours are joined, and one thread does them."""


class Groups(NamedTuple):
    """The rows of an epoch in the order they are to be done; group k is rows[bounds[k]:bounds[k + 1]].

    Groups come one after the other. Within one, rows of a `parallel` group may be done in any order by any thread;
    the others are for one thread, in order.
    """

    rows: NDArray[np.uint32]
    bounds: NDArray[np.int64]
    parallel: NDArray[np.bool_]


def colour(indptr: NDArray[np.int64], indices: NDArray[np.uint32], rows: ArrayLike, *, batch: int = 4096) -> Groups:
    """Group `rows`, in this order, so that rows of one group share no parameter; `batch` rows at a time.

    Args:
        indptr, indices: which parameters each row touches, as in a CSR matrix.
        rows: the rows to be done, in the order that doing them one by one would take.
        batch: a group holds rows of one batch only. Larger batches have larger groups, and jump about more in memory.

    >>> indptr, indices = np.array([0, 1, 2, 3]), np.array([7, 8, 7], np.uint32)  # rows 0 and 2 share parameter 7
    >>> colour(indptr, indices, [0, 1, 2]).rows.tolist()
    [0, 1, 2]
    """
    rows = np.ascontiguousarray(rows, dtype=np.uint32)
    parameters = int(indices.max(initial=0)) + 1
    levels = _levels(np.asarray(indptr, np.int64), np.asarray(indices, np.uint32), rows, parameters, batch)
    order = np.argsort(levels, kind="stable")
    sizes = np.bincount(levels[order], minlength=1)
    wide = sizes >= NARROW
    first = np.ones(len(sizes), dtype=bool)  # a group begins at each level, but for narrow ones after narrow ones
    first[1:] = wide[1:] | wide[:-1]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    bounds = np.append(starts[first], len(rows)).astype(np.int64)
    return Groups(rows[order], bounds, wide[first])


@njit(nogil=True, cache=True)
def _levels(indptr: Any, indices: Any, rows: Any, parameters: int, batch: int) -> Any:
    """Each row's level: above that of every earlier row it shares a parameter with, and of every earlier batch."""
    free = np.zeros(parameters, np.int32)  # the first level at which no row touches it
    levels = np.empty(len(rows), np.int32)
    floor, top = 0, -1
    for at in range(len(rows)):
        if at % batch == 0:
            floor = top + 1
        begin, end = indptr[rows[at]], indptr[rows[at] + 1]
        level = floor
        for place in range(begin, end):
            level = max(level, free[indices[place]])
        for place in range(begin, end):
            free[indices[place]] = level + 1
        levels[at] = level
        top = max(top, level)
    return levels
