"""How long a worker's steps last."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

from plesio.config.faults import Pace


class Timer(Protocol):
    """How long steps last, and what time it is; `paces`: whether it makes them last at all; `part`: of usual work, in a step."""

    paces: bool
    part: float

    def rest(self, sleep: Callable[[float], object]) -> None:
        """Let the rest of the step's time pass."""

    def begin(self) -> None:
        """The next step begins."""

    def now_s(self) -> float: ...

    def takes(self, step_s: float) -> None:
        """Where time is simulated: from now on a step takes so long."""

    def waits(self, seconds: float) -> None:
        """Let so much time pass."""


class Pacer:
    """Makes steps last longer: in place of an accelerator, and as the fault of a slow worker."""

    def __init__(self, pace: Pace | None, factor: float, rng: random.Random) -> None:
        self.paces = pace is not None or factor != 1.0
        self._pace = pace
        self._factor = factor
        self._rng = rng
        self.started_s = time.monotonic()
        self._overslept_s = 0.0
        self.part = 1.0

    def rest(self, sleep: Callable[[float], object]) -> None:
        if not self.paces:
            return
        spent_s = time.monotonic() - self.started_s
        least_s = self.part * self._pace.draw(self._rng) if self._pace else 0.0
        short_s = max(spent_s, least_s) * self._factor - spent_s
        if short_s > 0:
            sleep(max(0.0, short_s - self._overslept_s))
            self._overslept_s = self._overslept_s + time.monotonic() - self.started_s - spent_s - short_s

    def begin(self) -> None:
        self.started_s = time.monotonic()

    now_s = staticmethod(time.monotonic)

    def takes(self, step_s: float) -> None: ...

    def waits(self, seconds: float) -> None:
        time.sleep(seconds)
