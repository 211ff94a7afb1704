"""`Until`: when a run is over before its training functions are."""

from __future__ import annotations

from collections.abc import Mapping

from plesio.cluster.check import FINITE
from plesio.errors import ConfigurationError, unknown_name
from plesio.observe.summary import all_digits, is_met, limit_reached
from plesio.strategy.answers.answer import POSITIVE, Allowed

COUNTED = Allowed("a whole number of at least 1", lambda value: POSITIVE.holds(value) and value == int(value))
LIMITS = {"seconds": Allowed("a number of seconds above 0", POSITIVE.holds), "samples": COUNTED, "steps": COUNTED}


class MetricMissingError(ConfigurationError):
    """`evaluate` does not return what the run is to stop at: no strategy is likely to change that.

    >>> def evaluate(model):
    ...     return {"accuracy": 0.5}
    >>> goal = ps.Until(acuracy=0.9)
    >>> ps.run(train, "sync_sgd", workers=2, evaluate=evaluate, until=goal, engine=ps.Simulated("uniform"))
    Traceback (most recent call last):
        ...
    plesio.config.until.MetricMissingError: until acuracy=0.9: unknown metric 'acuracy'; known: accuracy; did you mean 'accuracy'?
    """


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
        for name, value in self.goals.items():
            allowed = LIMITS.get(name, FINITE)
            if not allowed.holds(value):
                raise ConfigurationError(f"Until({name}={value!r}): {name} must be {allowed.words}")

    @property
    def goals(self) -> dict[str, float]:
        """Targets and limits by name, as they were given."""
        return {**self.metrics, **self.limits}

    @property
    def target(self) -> tuple[str, float] | None:
        """The metric and the value that count as success, if any."""
        return next(iter(self.metrics.items()), None)

    def reached(
        self, done: Mapping[str, float], metrics: Mapping[str, float], more_may_come: bool = False
    ) -> str | None:
        """Why the run is over, if it is; `done`: its seconds, steps and samples so far; `metrics`: the last measured. Without
        that of a target it raises, unless `more_may_come`.

        >>> until = Until(steps=100, accuracy=0.9)
        >>> until.reached({"steps": 40}, {"accuracy": 0.8}), until.reached({"steps": 100}, {})
        (None, '100 steps were up')
        """
        for name, wanted in self.metrics.items() if metrics else ():
            if name not in metrics:
                if more_may_come:
                    continue
                raise MetricMissingError(f"until {name}={wanted:g}: {unknown_name('metric', name, metrics)}")
            if is_met(name, metrics[name], wanted):
                return f"{name} {all_digits(wanted)} reached"
        return limit_met(self.limits, done)

    def __repr__(self) -> str:
        return f"Until({', '.join(f'{name}={all_digits(value)}' for name, value in self.goals.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Until) and self.goals == other.goals


def limit_met(limits: Mapping[str, float], done: Mapping[str, float]) -> str | None:
    """The first of the `limits` that is reached by what is `done`, in words."""
    return next((limit_reached(name, limit) for name, limit in limits.items() if done[name] >= limit), None)
