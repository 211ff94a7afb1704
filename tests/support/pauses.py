"""Imported by the fork server of tests where PLESIO_PAUSES is set: workers stand still at random, so that a test which counts on
all of them being about as fast fails (`make test-long`)."""

from __future__ import annotations

import random
import time
from typing import Any

from plesio.worker.pacer import Pacer

LATE, LATE_S = 0.4, 0.3  # how many workers begin late, and by how much
SLOW, PAUSED, PAUSE_S = (
    1 / 3,
    0.03,
    0.15,
)  # how many are slow; before which share of their steps they pause, and how long


class Paused(Pacer):
    """Draws anew in each process, whatever the run's seed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.paces = True
        self._chance = random.SystemRandom()
        self._slow = self._chance.random() < SLOW
        if self._chance.random() < LATE:
            time.sleep(LATE_S)

    def begin(self) -> None:
        if self._slow and self._chance.random() < PAUSED:
            time.sleep(PAUSE_S)
        super().begin()


def pause_at_random() -> None:
    from plesio.launch.local import worker_process

    worker_process.Pacer = Paused  # type: ignore[misc]


pause_at_random()
