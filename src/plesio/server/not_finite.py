"""Which contributions with a NaN or an infinity get a line in the report: a worker's 1st, 2nd, 4th, 8th, ...

A model that has diverged sends nothing else. All of them are counted, but a line for each would be thousands of the same.
"""

from __future__ import annotations

from collections import Counter


class NotFinite:
    """Counts them by worker.

    >>> counted = NotFinite()
    >>> [counted.count(0) for _ in range(5)]
    ['', ', like 1 before it', None, ', like 3 before it', None]
    """

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def count(self, worker: int) -> str | None:
        """What the line on this one ends with; None if there is to be none."""
        self._seen[worker] += 1
        number = self._seen[worker]
        if number & (number - 1):
            return None
        return f", like {number - 1:,} before it" if number > 1 else ""
