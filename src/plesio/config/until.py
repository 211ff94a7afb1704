"""`Until`: when a run is over before its training functions are."""

from __future__ import annotations

import math
from typing import Protocol

from plesio.errors import ConfigurationError, unknown_name
from plesio.observe.summary import all_digits, is_met, limit_reached


class Standing(Protocol):
    """How far a run is."""

    time_s: float
    steps: int
    samples: int
    metrics: dict[str, float]


class Until:
    """When to end a run before its training functions return: at the first of the given limits and targets.

    Real processes end shortly after: workers are told at their next exchange, and what they do meanwhile, about a tenth of
    a second of work, still counts. In a simulated run `seconds`, `samples` and `steps` are exact.

    Args:
        seconds: of training, since it began or was last resumed.
        samples: visited by all workers together; in a resumed run those before count, too.
        steps: local optimizer steps, likewise.
        metrics: values that `evaluate` is to reach: at least, or at most for a name with "loss", "error", "mse", "mae",
            "perplexity" or "nll" in it that does not begin with "neg_".

    Raises:
        ConfigurationError: a limit that is not above 0, a count that is not whole, a target that is no number.

    >>> Until(accuracy=0.95, seconds=30)
    Until(accuracy=0.95, seconds=30)
    """

    def __init__(
        self, *, seconds: float | None = None, samples: int | None = None, steps: int | None = None, **metrics: float
    ) -> None:
        self.seconds, self.samples, self.steps, self.metrics = seconds, samples, steps, metrics
        limits = {"seconds": seconds, "samples": samples, "steps": steps}
        self.limits = {name: value for name, value in limits.items() if value is not None}
        for name, value in self.limits.items():
            if name == "seconds" and not (_is_number(value) and 0 < value < math.inf):
                raise ConfigurationError(f"Until(seconds={value!r}): seconds must be a number of seconds above 0")
            if name != "seconds" and not (_is_number(value) and 1 <= value < math.inf and value == int(value)):
                raise ConfigurationError(
                    f"Until({name}={value!r}): {name} are counted, give a whole number of at least 1"
                )
        for name, value in metrics.items():
            if not _is_number(value) or not math.isfinite(value):
                raise ConfigurationError(f"Until({name}={value!r}): a target is a finite number, such as accuracy=0.95")

    @property
    def goals(self) -> dict[str, float]:
        """Targets and limits by name, as they were given."""
        return {**self.metrics, **self.limits}

    @property
    def target(self) -> tuple[str, float] | None:
        """The metric and the value that count as success, if any."""
        return next(iter(self.metrics.items()), None)

    def reached(self, live: Standing, steps_before: int = 0, samples_before: int = 0) -> str | None:
        """Why the run is over, if it is; `steps_before` were taken before it was resumed, `samples_before` visited.

        Raises:
            ConfigurationError: a target that `evaluate` does not measure would never be reached.

        >>> from types import SimpleNamespace
        >>> live = SimpleNamespace(time_s=1.0, steps=40, samples=320, metrics={})
        >>> Until(steps=100).reached(live), Until(steps=100).reached(live, steps_before=60)
        (None, '100 steps were up')
        """
        unknown = self.metrics.keys() - live.metrics.keys() if live.metrics else set()
        if unknown:
            raise ConfigurationError(unknown_name("metric", min(unknown), live.metrics))
        for name, wanted in self.metrics.items():
            got = live.metrics.get(name)
            if got is not None and is_met(name, got, wanted):
                return f"{name} {all_digits(wanted)} reached"
        samples, steps = samples_before + live.samples, steps_before + live.steps
        now = {"seconds": live.time_s, "samples": samples, "steps": steps}
        for name, limit in self.limits.items():
            if now[name] >= limit:
                return limit_reached(name, limit)
        return None

    def __repr__(self) -> str:
        return f"Until({', '.join(f'{name}={all_digits(value)}' for name, value in self.goals.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Until) and self.goals == other.goals

    def __hash__(self) -> int:
        return hash(tuple(self.goals.items()))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
