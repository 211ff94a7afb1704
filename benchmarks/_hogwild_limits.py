"""The physical limit of a sparse linear model: its memory traffic with nothing else, on the same rows.

A step has to stream a non-zero (index and value, 8 bytes), gather its weight (4 bytes) and scatter it back. `touch` does
that and no more: no loss, no learning rate, no bookkeeping; sums in any order, so that the compiler may use vectors.
"""

from __future__ import annotations

import time

import numpy as np
from numba import njit

from _hogwild_data import Rows
from plesio.kernels.intrinsics import prefetch


@njit(nogil=True, fastmath=True)
def touch(indptr, indices, values, weights, ahead):
    """Gather and scatter the weights of all rows; `ahead` rows early they are asked for, if it is not 0."""
    rows = len(indptr) - 1
    for row in range(rows):
        if ahead:
            soon = np.uint64(min(row + ahead, rows - 1))
            for i in range(np.uint64(indptr[soon]), np.uint64(indptr[soon + 1])):
                prefetch(weights, indices[i])
        begin, end = np.uint64(indptr[row]), np.uint64(indptr[row + 1])
        total = np.float32(0)
        for i in range(begin, end):
            total += weights[indices[i]] * values[i]
        step = np.float32(1e-9) * total
        for i in range(begin, end):
            weights[indices[i]] += step * values[i]


def ns_a_nonzero(rows: Rows, sweeps: int = 3) -> float:
    """Nanoseconds that one thread needs for a non-zero, the better of with and without prefetch, best of the sweeps."""
    weights = np.ones(rows.features, np.float32)
    touch(rows.indptr[:2], rows.indices, rows.values, weights, 0)  # compiled and paged in before the clock runs
    best = np.inf
    for ahead in (0, 2):
        for _ in range(sweeps):
            start_s = time.perf_counter()
            touch(rows.indptr, rows.indices, rows.values, weights, ahead)
            best = min(best, time.perf_counter() - start_s)
    return 1e9 * best / len(rows.indices)
