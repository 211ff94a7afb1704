"""What can be made to go wrong on purpose, and how long a step is made to last."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod
from typing import Annotated

from plesio.cluster.check import SECONDS, Checked, check_fields
from plesio.strategy.answers.answer import DECAY, POSITIVE, WHOLE, Allowed

FACTOR = Allowed("at least 1 (10: ten times slower)", lambda value: POSITIVE.holds(value) and value >= 1)
WORKER = Allowed("the number of one, 0 for the first", WHOLE.holds)
WORKER_OR_NONE = Allowed(WORKER.words, lambda value: value is None or WHOLE.holds(value))


class Slow(Checked, frozen=True, tag_field="kind"):
    """Worker `worker` takes `factor` times as long for each step.

    Raises:
        ConfigurationError: a factor below 1 or infinite, a worker that is not a whole number.

    >>> Slow(worker=0, factor=10)
    Slow(worker=0, factor=10)
    """

    worker: Annotated[int, WORKER]
    factor: Annotated[float, FACTOR]


class Kill(Checked, frozen=True, tag_field="kind"):
    """Kill a process outright (SIGKILL), `after_s` seconds into training: a worker, or the server if none is named.

    Raises:
        ConfigurationError: a negative time, a worker that is not a whole number.

    >>> Kill(worker=1, after_s=2.5)
    Kill(worker=1, after_s=2.5)
    """

    worker: Annotated[int | None, WORKER_OR_NONE] = None
    after_s: Annotated[float, SECONDS] = 0.0


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

    step_s: Annotated[float, SECONDS]
    jitter: Annotated[float, DECAY] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def speed(self, factor: float) -> float:
        """Steps/s of a worker that is slowed down by `factor`, if nothing but the pace takes time; 0 without one."""
        return 1.0 / (self.step_s * factor) if self.step_s > 0 else 0.0

    def draw(self, rng: random.Random) -> float:
        """How long the next step is to last, in seconds."""
        return self.step_s * max(0.0, rng.gauss(1.0, self.jitter)) if self.jitter else self.step_s


def slowness(faults: tuple[Fault, ...], worker: int) -> float:
    """By what factor `worker` is slowed down."""
    return prod(one.factor for one in faults if isinstance(one, Slow) and one.worker == worker)
