"""One thread or several: found out in training itself, so that no time is lost on a trial.

Two threads on one small, hot model, or beside other programs, can be slower than one. So the last eighth of the first
epochs is done by one thread, on the model that is being trained, and the faster way goes on. All threads have the larger
part because what it costs to bring replicas together counts once a part, and once an epoch later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.choosing import MARGIN

_ENOUGH = 400_000  # non-zeros done by one thread: fewer take too short a time to be sure of it
_EPOCHS_LEAST = 2  # the very first part of a process has to load the kernel, or compile it


class Contest:
    """Says of each part of an epoch whether all threads shall do it, and times them until enough was timed.

    Attributes:
        open: whether it goes on.
        won: whether all threads have been faster than one so far.
    """

    def __init__(self, nonzeros_per_turn: float, *, open: bool) -> None:
        self.open, self.won = open, True
        self._nonzeros_per_turn, self._timed, self._epochs = nonzeros_per_turn, 0.0, 0
        self._speeds = {True: 0.0, False: 0.0}  # the best, since other load can only slow threads down

    def parts(self, order: NDArray[np.uint32]) -> Iterator[tuple[NDArray[np.uint32], bool]]:
        """(turns, whether all threads do them); the caller's work on each is timed."""
        if not self.open:
            yield order, self.won
            return
        cut = 7 * len(order) // 8
        for part, by_all in ((order[:cut], True), (order[cut:], False)):
            began = time.perf_counter()
            yield part, by_all
            speed = len(part) / max(time.perf_counter() - began, 1e-9)
            self._speeds[by_all] = max(self._speeds[by_all], speed)
        self._timed += (len(order) - cut) * self._nonzeros_per_turn
        self._epochs += 1
        self.open = self._timed < _ENOUGH or self._epochs < _EPOCHS_LEAST
        self.won = self._speeds[True] > MARGIN * self._speeds[False]
