"""What is told of contributions that are not finite: a worker's first, and then whenever there are twice as many.

A model that has diverged sends nothing else. All of them are counted; a line for each would be thousands that say the same.
"""

from __future__ import annotations

from collections import Counter


class NotFinite:
    """Counts them, by worker.

    >>> counted = NotFinite()
    >>> [counted.once_more(0) for _ in range(5)]
    ['', ', like 1 before it', None, ', like 3 before it', None]
    """

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def once_more(self, worker: int) -> str | None:
        """What the line on this one ends with; None if there is to be none."""
        self._seen[worker] += 1
        number = self._seen[worker]
        if number & (number - 1):
            return None
        return f", like {number - 1:,} before it" if number > 1 else ""
