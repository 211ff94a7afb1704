"""Features in the order they first occur: the weights that are used lie side by side, those of unused features nowhere.

A hashed feature space scatters its weights over 2^20 or 2^24 places, most of them empty. The frequent ones occur early, so
that their weights come to lie in a few pages, and the model is as large as what occurs. It takes about as long as a sweep
over the rows, and halves what the sweeps take on a model beyond the cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled
from plesio.kernels.intrinsics import fetch_add, prefetch, settle
from plesio.sparse.csr import Rows
from plesio.sparse.threads import by_shares, pool, shares

_AHEAD = np.uint64(64)
_PIECE = 16_384  # non-zeros a thread takes at once
_BLOCK = 1024  # numbers a thread takes at once
_UNUSED = np.uint32(2**32 - 1)
_ONE = np.uint32(1)


def renumber(rows: Rows, threads: int = 1) -> tuple[Rows, NDArray[np.uint32]]:
    """(the same rows with features renumbered; which feature each number was, 2^32 − 1 for numbers without one).

    With several threads the numbers depend on which of them came first; what is learnt does not depend on the numbers.

    >>> from plesio.sparse.csr import as_rows
    >>> renumbered, features = renumber(as_rows(np.array([[0, 0, 1], [2, 0, 3]], np.float32)))
    >>> features[:2].tolist(), renumbered.indices.tolist()
    ([2, 0], [0, 1, 0])
    """
    table, numbers = np.zeros(rows.features, np.uint32), np.empty(rows.nonzeros, np.uint32)
    features = np.empty(min(rows.features, rows.nonzeros) + threads * _BLOCK, np.uint32)
    counters = np.zeros(2, np.int64)
    pool(threads).run(lambda _: _number(rows.indices, table, numbers, features, counters))
    numbers.flags.writeable = False
    features = features[: counters[1]]
    return replace(rows, indices=numbers, features=len(features)), features


def bring_home(
    home: NDArray[np.float32], features: NDArray[np.uint32], weights: NDArray[np.float32], threads: int
) -> None:
    """Write each weight to the place of its feature."""
    by_shares(shares(len(features), threads), lambda first, stop: _scatter(home, features, weights, first, stop))


@compiled
def _number(indices, table, numbers, features, counters):
    """Take pieces of the non-zeros and number the features in them; `table` holds a feature's number + 1."""
    mine = end = 0
    while True:
        first = fetch_add(counters, 0, _PIECE)
        if first >= len(indices):
            break
        last = np.uint64(min(first + _PIECE, len(indices)))
        for i in range(np.uint64(first), last):
            prefetch(table, indices[min(i + _AHEAD, last - np.uint64(1))])
            number = table[indices[i]]
            if number == 0:
                if mine == end:
                    mine = fetch_add(counters, 1, _BLOCK)
                    end = mine + _BLOCK
                wanted = np.uint32(mine) + _ONE
                number = settle(table, indices[i], wanted)
                if number == wanted:
                    features[mine] = indices[i]
                    mine += 1
            numbers[i] = number - _ONE
    for at in range(mine, end):
        features[at] = _UNUSED


@compiled
def _scatter(home, features, weights, begin, end):
    for at in range(np.uint64(begin), np.uint64(end)):
        prefetch(home, features[min(at + _AHEAD, np.uint64(end - 1))])
        if features[at] != _UNUSED:
            home[features[at]] = weights[at]
