"""Features by frequency: the weights that are used most lie side by side, those of unused features nowhere.

A hashed feature space scatters its few thousand hot weights over as many cache lines, each filled up with cold ones; and
most of its 2^20 or 2^24 places are empty. Ranked, the hot ones fill lines by sixteens and the model is as large as what
occurs. It costs several sweeps, so it is for fits of many epochs on models beyond the cache.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from plesio.hogwild.csr import Rows
from plesio.hogwild.intrinsics import prefetch

_AHEAD = np.uint64(16)


def rank(rows: Rows) -> tuple[Rows, NDArray[np.uint32]]:
    """(the same rows with features renumbered, the most frequent first; which feature each number was).

    >>> from plesio.hogwild.csr import as_rows
    >>> ranked, features = rank(as_rows(np.array([[0, 0, 1], [0, 2, 3]], np.float32)))
    >>> features.tolist(), ranked.indices.tolist(), ranked.features
    ([2, 1], [0, 1, 0], 2)
    """
    table, found = np.zeros(rows.features, np.uint32), np.empty(rows.nonzeros, np.uint32)
    used = np.sort(found[: _count(rows.indices, table, found)])
    rarity = ~np.minimum(table[used], 2**16 - 1).astype(np.uint16)  # sixteen bits are sorted in linear time
    features = used[np.argsort(rarity, kind="stable")]
    table[features] = np.arange(len(features), dtype=np.uint32)
    _look_up(rows.indices, table, found)
    found.flags.writeable = False
    return replace(rows, indices=found, features=len(features)), features


@njit(nogil=True, cache=True)
def _count(indices, table, found):
    """Count each feature in `table`, and list those that occur."""
    features = 0
    for i in range(np.uint64(len(indices))):
        prefetch(table, indices[min(i + _AHEAD, np.uint64(len(indices) - 1))])
        if table[indices[i]] == 0:
            found[features] = indices[i]
            features += 1
        table[indices[i]] += np.uint32(1)
    return features


@njit(nogil=True, cache=True)
def _look_up(indices, table, found):
    for i in range(np.uint64(len(indices))):
        prefetch(table, indices[min(i + _AHEAD, np.uint64(len(indices) - 1))])
        found[i] = table[indices[i]]
