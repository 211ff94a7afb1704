"""What can be made to go wrong on purpose, and how long a step is made to last."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf, prod

import msgspec

from plesio.config.setting import is_number
from plesio.errors import ConfigurationError


class Slow(msgspec.Struct, frozen=True, tag_field="kind"):
    """Worker `worker` takes `factor` times as long for each step.

    Raises:
        ConfigurationError: a factor below 1 or infinite, a worker that is not a whole number.

    >>> Slow(worker=0, factor=10)
    Slow(worker=0, factor=10)
    """

    worker: int
    factor: float

    def __post_init__(self) -> None:
        _check_worker(self.worker, self)
        if not (is_number(self.factor) and 1 <= self.factor < inf):
            raise ConfigurationError(f"Slow(factor={self.factor!r}): factor must be at least 1 (10: ten times slower)")


class Kill(msgspec.Struct, frozen=True, tag_field="kind"):
    """Kill a process outright (SIGKILL), `after_s` seconds into training: a worker, or the server if none is named.

    Raises:
        ConfigurationError: a negative time, a worker that is not a whole number.

    >>> Kill(worker=1, after_s=2.5)
    Kill(worker=1, after_s=2.5)
    """

    worker: int | None = None
    after_s: float = 0.0

    def __post_init__(self) -> None:
        if self.worker is not None:
            _check_worker(self.worker, self)
        if not (is_number(self.after_s) and 0 <= self.after_s < inf):
            raise ConfigurationError(
                f"Kill(after_s={self.after_s!r}): after_s must be a number of seconds of at least 0"
            )


def _check_worker(worker: object, fault: object) -> None:
    if not isinstance(worker, int):
        raise ConfigurationError(f"{fault}: worker must be the number of one, 0 for the first")


Fault = Slow | Kill


@dataclass(frozen=True, slots=True)
class Pace:
    """Makes each step last at least `step_s` seconds, varied by `jitter`: the standard deviation, as a share of `step_s`.

    It stands in for an accelerator on a small machine: the worker sleeps, so that many workers fit on few cores.

    Raises:
        ConfigurationError: a negative time, or a jitter that is not at least 0 and below 1.

    >>> Pace(step_s=0.02).draw(random.Random(0))
    0.02
    """

    step_s: float
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.step_s) and 0 <= self.step_s < inf):
            raise ConfigurationError(f"Pace(step_s={self.step_s!r}): step_s must be a number of seconds of at least 0")
        if not (is_number(self.jitter) and 0 <= self.jitter < 1):
            raise ConfigurationError(f"Pace(jitter={self.jitter!r}): jitter must be at least 0 and below 1")

    def speed(self, factor: float) -> float:
        """Steps/s of a worker that is slowed down by `factor`, if nothing but the pace takes time; 0 without one."""
        return 1.0 / (self.step_s * factor) if self.step_s > 0 else 0.0

    def draw(self, rng: random.Random) -> float:
        """How long the next step is to last, in seconds."""
        return self.step_s * max(0.0, rng.gauss(1.0, self.jitter)) if self.jitter else self.step_s


def slowness(faults: tuple[Fault, ...], worker: int) -> float:
    """By what factor `worker` is slowed down."""
    return prod(one.factor for one in faults if isinstance(one, Slow) and one.worker == worker)
