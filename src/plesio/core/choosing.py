"""Which of its phases a run that chooses by itself is in, from forecasts of how fast each would be.

Theory. The phases are in order, the tightest first. Wanted is the tightest one that is about as fast as the fastest (`close`).

- A looser phase than the present one is taken if it is `better` times as fast: what it costs in samples nobody knows.
- A tighter one is taken back as soon as it is wanted: it costs a tenth of the speed at most.

Since `better` is above `close`, forecasts that vary by less than their ratio do not make a run go to and fro. A phase is taken
when `in_a_row` forecasts want it, and not within `apart_s` of another change, whoever made that.

Promises: without a forecast of the present phase nothing changes; a phase without one is never taken; under forecasts that stay
the same there is one change at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from plesio.strategy.choosing import Choosing


class Chooser:
    """Hears forecasts, and says what to change to. It reads no clock.

    >>> one = Chooser(Choosing(in_a_row=2, apart_s=60))
    >>> one.hear(30, 0, [10.0, 14.0]), one.hear(60, 0, [10.0, 14.0]), one.hear(90, 1, [10.0, 14.0])
    (None, 1, None)
    """

    def __init__(self, rules: Choosing) -> None:
        self._rules = rules
        self._phase = 0
        self._since_s = -inf
        self._wanted: int | None = None
        self._times = 0  # so often in a row

    def hear(self, now_s: float, phase: int, speeds: Sequence[float | None]) -> int | None:
        """The phase to change to. `phase`: the present one; `speeds`: of each, steps a second, if that is known."""
        if phase != self._phase:
            self._phase, self._since_s, self._times = phase, now_s, 0
        wanted = self._better(phase, speeds)
        self._times = self._times + 1 if wanted == self._wanted else 1
        self._wanted = wanted
        if wanted is None or self._times < self._rules.in_a_row or now_s - self._since_s < self._rules.apart_s:
            return None
        self._since_s, self._times = now_s, 0
        return wanted

    def _better(self, phase: int, speeds: Sequence[float | None]) -> int | None:
        present, known = speeds[phase], [one for one in speeds if one is not None]
        if present is None:
            return None
        enough = max(known) / self._rules.close
        wanted = next(place for place, one in enumerate(speeds) if one is not None and one >= enough)
        faster = (speeds[wanted] or 0.0) >= self._rules.better * present
        return wanted if wanted < phase or (wanted > phase and faster) else None
