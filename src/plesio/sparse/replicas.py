"""A copy of the model for each thread, brought together after every epoch.

On a small model that all threads write all the time, cache lines go back and forth between cores; a copy each avoids
that. Together they move a parameter by the mean of what those threads that moved it at all moved it by: a mean over all
would halve the progress of what only one of two threads ever saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import njit
from numpy.typing import NDArray


def replicate(arrays: Sequence[NDArray[Any]], count: int) -> list[list[NDArray[Any]]]:
    """`count` copies of the arrays."""
    return [[array.copy() for array in arrays] for _ in range(count)]


def merge(arrays: Sequence[NDArray[Any]], replicas: Sequence[Sequence[NDArray[Any]]]) -> None:
    """Bring what the replicas moved into `arrays`, and the replicas back to it.

    >>> import numpy as np
    >>> shared, one, other = np.zeros(3), np.array([2.0, 0.0, 1.0]), np.array([4.0, 0.0, 0.0])
    >>> merge([shared], [[one], [other]])
    >>> shared.tolist()
    [3.0, 0.0, 1.0]
    """
    for number, array in enumerate(arrays):
        copies = tuple(replica[number].reshape(-1) for replica in replicas)
        _merge(array.reshape(-1), copies, array.dtype.kind in "iub")


@njit(nogil=True, cache=True)
def _merge(shared: Any, copies: Any, count: bool) -> None:
    """Whole numbers are taken for counts: they add up."""
    for at in range(len(shared)):
        before, moved = shared[at], 0
        total = shared[at] - shared[at]
        for copy in copies:
            if copy[at] != before:
                total += copy[at] - before
                moved += 1
        if moved:
            shared[at] = before + (total if count else total / moved)
            for copy in copies:
                copy[at] = shared[at]
