"""The step times of a worker under slowdowns and outages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from plesio.cluster.check import INFINITE
from plesio.cluster.faults import Outage, Slow


class Timetable:
    """The step times of one worker: draws work, and does it at the pace of each moment."""

    __slots__ = ("_draw", "_outage", "_slows")

    def __init__(self, draw: Callable[[], float], slows: Sequence[Slow] = (), outage: Outage | None = None) -> None:
        self._draw = draw
        self._slows = slows
        self._outage = outage

    def step_s(self, now_s: float) -> float:
        """Seconds of the worker's next step if it begins at `now_s`; each call is a new step."""
        work_s = self._draw()
        if not self._slows and self._outage is None:
            return work_s
        time_s = now_s
        while work_s > 0:
            factor, until_s = self._pace(time_s)
            end_s = time_s + work_s * factor
            if end_s <= until_s:
                return end_s - now_s
            work_s -= (until_s - time_s) / factor
            time_s = until_s
        return time_s - now_s

    def _pace(self, time_s: float) -> tuple[float, float]:
        """The slowdown factor at `time_s`, and until when it holds."""
        factor, until_s = 1.0, INFINITE
        for slow in self._slows:
            if slow.at_s <= time_s < slow.until_s:
                factor *= slow.factor
                until_s = min(until_s, slow.until_s)
            elif time_s < slow.at_s:
                until_s = min(until_s, slow.at_s)
        if self._outage is not None:
            start_s = self._outage.start_s or 0.0
            since_s = (time_s - start_s) % self._outage.every_s if time_s >= start_s else time_s - start_s
            still = 0 <= since_s < self._outage.lasts_s
            left_s = (self._outage.lasts_s if still else self._outage.every_s if since_s >= 0 else 0.0) - since_s
            factor = INFINITE if still else factor
            until_s = min(until_s, max(time_s + left_s, math.nextafter(time_s, INFINITE)))
        return factor, until_s
