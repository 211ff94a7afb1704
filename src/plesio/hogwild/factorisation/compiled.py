"""How this package's loops are compiled, and run by threads that each take a share.

Numba counts references to arrays, and does so inside loops: locked additions to a line that all threads write. Sweeps
took 1.25 times as long for it. Nothing here makes or keeps an array, so there is nothing to count: `_nrt=False`.
Divisions by zero give infinity, as in NumPy, instead of a test and a jump at each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from plesio.hogwild.threads import pool

SHARE = 1 << 18
"""With fewer numbers a thread, waking it takes longer than its share."""

_HOW: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
_INSIDE: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

compiled: Any = njit(nogil=True, cache=True, **_HOW)
"""For what Python calls."""

inlined: Any = njit(**_HOW, **_INSIDE)
"""For what kernels call: a call would pass the 50 words that tuples of arrays come to, for every rating."""


def shares(length: int, threads: int, numbers: int = 1) -> list[tuple[int, int]]:
    """Cut `length` things, each of so many `numbers`, into (first, stop), one for each thread that is worth waking.

    >>> shares(10, 4)
    [(0, 10)]
    """
    count = max(1, min(threads, length * numbers // SHARE))
    return [(length * part // count, length * (part + 1) // count) for part in range(count)]


def by_shares(parts: list[tuple[int, int]], work: Callable[[int, int], object]) -> None:
    """Call `work(first, stop)` for each share, all at once."""
    pool(len(parts)).run(lambda thread: work(*parts[thread]))
