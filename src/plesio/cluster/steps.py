"""How long a step takes: without faults, and under slowdowns and outages."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Annotated

import msgspec

from plesio.cluster.check import INFINITE, Checked
from plesio.cluster.faults import Outage, Slow
from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import NUMBER, POSITIVE, Allowed

SPREAD = Allowed("a finite number of at least 1", lambda value: POSITIVE.holds(value) and value >= 1)


class Law(Checked, frozen=True, tag_field="law", tag=str.lower):
    """How the seconds of a worker's steps are drawn.

    `draws(rank, rng)` of each law returns a function that draws the next step's seconds for the `rank`-th worker
    (from 1) of its cluster.
    """


class Constant(Law, frozen=True):
    """Every step takes `step_s`."""

    step_s: Annotated[float, POSITIVE]

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        return lambda: self.step_s


class LogNormal(Law, frozen=True):
    """Half the steps take less than `median_s`; `sigma` is the logarithm's standard deviation (0.1: about 10%)."""

    median_s: Annotated[float, POSITIVE]
    sigma: Annotated[float, NUMBER]

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        mu, sigma, draw = math.log(self.median_s), self.sigma, rng.lognormvariate
        return lambda: draw(mu, sigma)


class Exponential(Law, frozen=True):
    """`least_s` plus an exponential time; `mean_s` is the mean of the sum."""

    mean_s: Annotated[float, POSITIVE]
    least_s: Annotated[float, NUMBER] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least_s >= self.mean_s:
            raise ConfigurationError(
                f"Exponential(mean_s={self.mean_s!r}, least_s={self.least_s!r}): least_s must be below mean_s"
            )

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        least_s, rate, draw, log = self.least_s, 1.0 / (self.mean_s - self.least_s), rng.random, math.log
        return lambda: least_s - log(1.0 - draw()) / rate  # random's expovariate, without its call


class Pareto(Law, frozen=True):
    """At least `least_s`, with a heavy tail: P(X > x) = (least_s/x)^shape; infinite variance up to shape 2."""

    least_s: Annotated[float, POSITIVE]
    shape: Annotated[float, POSITIVE]

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        least_s, shape, draw = self.least_s, self.shape, rng.paretovariate
        return lambda: least_s * draw(shape)


class Ranked(Law, frozen=True):
    """The i-th worker of the cluster takes `step_s` times i^power; theory papers use powers 1 and 0.5."""

    step_s: Annotated[float, POSITIVE]
    power: Annotated[float, NUMBER] = 1.0

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        step_s = self.step_s * rank**self.power
        return lambda: step_s


class Walk(Law, frozen=True):
    """Starts at `step_s`; each step multiplies it by e^N(0, sigma), reflected at a factor `spread` up or down."""

    step_s: Annotated[float, POSITIVE]
    sigma: Annotated[float, NUMBER]
    spread: Annotated[float, SPREAD] = 4.0

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        edge, at = math.log(self.spread), 0.0

        def draw() -> float:
            nonlocal at
            at += rng.gauss(0.0, self.sigma)
            if abs(at) > edge:
                at = math.copysign(max(2 * edge - abs(at), -edge), at)
            return self.step_s * math.exp(at)

        return draw


class Trace(Law, frozen=True):
    """Measured seconds, repeated in order; with `resample`, drawn at random.

    Give them as `seconds`, or as a `file` with one number per line (blank lines and lines starting with # are skipped).
    """

    seconds: tuple[float, ...] = ()
    file: str = ""
    resample: bool = False

    def __post_init__(self) -> None:
        if bool(self.seconds) == bool(self.file):
            raise ConfigurationError("Trace: give either seconds, the measured numbers, or the file that holds them")
        if self.file:
            msgspec.structs.force_setattr(self, "seconds", _read_trace(Path(self.file)))
        for number, value in enumerate(self.seconds, 1):
            if not POSITIVE.holds(value):
                raise ConfigurationError(f"Trace: measurement {number} is {value!r}; a step takes seconds, above 0")

    def draws(self, rank: int, rng: random.Random) -> Callable[[], float]:
        if self.resample:
            return lambda: rng.choice(self.seconds)
        return cycle(self.seconds).__next__


def _read_trace(path: Path) -> tuple[float, ...]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
        seconds = tuple(float(line) for line in lines if line and not line.startswith("#"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"trace file {path}: {error}; give a file with one number of seconds a line"
        ) from error
    if not seconds:
        raise ConfigurationError(f"trace file {path} holds no number; allowed: one number of seconds a line")
    return seconds


StepTime = Constant | LogNormal | Exponential | Pareto | Ranked | Walk | Trace


class Timetable:
    """The step times of one worker: draws work, and does it at the pace of each moment."""

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
