"""How many batches a worker asks for at a time.

To ask costs a worker about a millisecond where all cores are busy, which steps that take less must not pay often. What it
was given nobody else can take, though, so a slow one keeps to few: at the end of an epoch and of a run, others would be
done with them sooner.
"""

from __future__ import annotations

LEAST, MOST = 8, 64
QUICK_S = 0.05
"""Batches that were used up within this time were too few."""


class LeaseSize:
    """One worker's, by how long its last lease lasted.

    >>> size = LeaseSize()
    >>> size.asked(most=100, now_s=0.0)
    8
    >>> size.given(now_s=0.0)
    >>> size.asked(most=100, now_s=0.01)
    16
    """

    def __init__(self) -> None:
        self._batches = LEAST
        self._given_s: float | None = None

    def asked(self, most: int, now_s: float) -> int:
        """How many to ask for: `most` at most.

        Where the time stands still, which is in a replay, that is never less than the recorded worker asked for.
        """
        if self._given_s is not None:
            quick = now_s - self._given_s < QUICK_S
            self._batches = min(self._batches * 2, MOST) if quick else max(self._batches // 2, LEAST)
        return min(self._batches, most)

    def given(self, now_s: float) -> None:
        """There were some."""
        self._given_s = now_s
