"""What `ps.run` is given, looked at before anything starts: each refusal names the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path

from plesio.choices import PROCESSES_MAX, SIMULATED_MAX
from plesio.errors import ConfigurationError, StrategyError
from plesio.faults import Pace
from plesio.launch.simulated.engine import Simulated
from plesio.launch.until import Until
from plesio.strategy import Strategy
from plesio.strategy.recipes import RECIPES, recipe

LONGEST_S = 1e6
"""Eleven days; poll() takes milliseconds in 31 bits, and some waits are for twice the time."""


def as_strategy(strategy: Strategy | str | Callable[..., Strategy]) -> Strategy:
    """A strategy, given as one, as the name of a recipe, or as the recipe itself.

    >>> as_strategy("sync_sgd").name
    'sync_sgd'
    """
    if isinstance(strategy, str):
        return recipe(strategy)
    if not isinstance(strategy, Strategy) and getattr(strategy, "__name__", None) in RECIPES:
        return recipe(strategy.__name__)
    if not isinstance(strategy, Strategy):
        raise StrategyError(
            f"strategy={strategy!r}: give a strategy such as ps.async_sgd(), or one of the names {', '.join(RECIPES)}"
        )
    return strategy


def as_pace(pace: Pace | float | None) -> Pace | None:
    """A pace, given as one or as the seconds of a step.

    >>> as_pace(0.02)
    Pace(step_s=0.02, jitter=0.0)
    """
    if pace is None or isinstance(pace, Pace):
        return pace
    if isinstance(pace, (int, float)) and not isinstance(pace, bool):
        return Pace(step_s=pace)
    raise ConfigurationError(f"pace={pace!r}: seconds a step, such as 0.02, or ps.Pace(step_s=0.02, jitter=0.1)")


def check_numbers(workers: int, seed: int, evaluate_every_s: float, timeout_s: float, simulated: bool) -> None:
    """Raise `ConfigurationError` for a number out of bounds. No process waits for virtual time: it may be as long as you like."""
    most = SIMULATED_MAX if simulated else PROCESSES_MAX
    longest_s, within = (inf, "") if simulated else (LONGEST_S, f" and of at most {LONGEST_S:,.0f}, eleven days")
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= most:
        raise ConfigurationError(f"workers={workers!r}: a whole number from 1 to {most} on one host")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ConfigurationError(f"seed={seed!r}: a whole number of at least 0 and below 2**63")
    for name, value in (("evaluate_every_s", evaluate_every_s), ("timeout_s", timeout_s)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= longest_s:
            raise ConfigurationError(f"{name}={value!r}: a number of seconds above 0{within}")


def check_kinds(train: object, engine: object, evaluate: object, until: object, watch: object, runs: object) -> None:
    """Raise `ConfigurationError` for an argument of another kind than it must be, or a target nobody measures."""
    if engine != "local" and not isinstance(engine, Simulated):
        raise ConfigurationError(
            f"engine={engine!r}: 'local', or ps.Simulated(cluster), as ps.Simulated('one-straggler')"
        )
    if watch is not None and not callable(watch):
        raise ConfigurationError(f"watch={watch!r}: a function that takes the state of the run")
    if runs is not None and not isinstance(runs, (str, Path)):
        raise ConfigurationError(f"runs={runs!r}: a folder for run folders, such as 'runs'")
    if not callable(train):
        raise ConfigurationError(f"train={train!r}: a function that takes a ps.Worker")
    if evaluate is not None and not callable(evaluate):
        raise ConfigurationError(
            f"evaluate={evaluate!r}: a function that takes the model and returns names and numbers"
        )
    if until is not None and not isinstance(until, Until):
        raise ConfigurationError(f"until={until!r}: such as ps.Until(accuracy=0.95, seconds=30)")
    if isinstance(until, Until) and until.metrics and evaluate is None:
        raise ConfigurationError(
            f"until={until!r} needs evaluate=, a function that measures {', '.join(until.metrics)}"
        )
