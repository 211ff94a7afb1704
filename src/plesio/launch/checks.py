"""Whether a run's functions can be what they are given as."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from plesio.config import RunConfig
from plesio.errors import ConfigurationError
from plesio.observe.provenance import without_arguments


def check_functions(config: RunConfig, train: object, evaluate: object, watch: object) -> None:
    """Raise `ConfigurationError` for a function of the user's that cannot be called, or one that is missing."""
    if train is not None and not callable(train):
        raise ConfigurationError(f"train={train!r}: a function that takes a ps.Worker")
    takes = {
        "watch": "the state of the run (or True, for the live page)",
        "evaluate": "the model and returns names and numbers",
    }
    for (name, what), given in zip(takes.items(), (watch, evaluate), strict=True):
        if given is not None and not callable(given):
            raise ConfigurationError(f"{name}={given!r}: a function that takes {what}")
    if evaluate is not None:
        _check_takes_a_model(evaluate)
    if config.until.metrics and evaluate is None:
        raise ConfigurationError(
            f"until={config.until!r} needs evaluate=, a function that measures {', '.join(config.until.metrics)}"
        )
    if train is not None:
        _check_runs_when_called(train)


def _check_takes_a_model(evaluate: Any) -> None:
    """Raise `ConfigurationError` for a function that cannot be called with a model alone, such as one of the script's own."""
    try:
        signature = inspect.signature(evaluate)
    except (TypeError, ValueError):  # not every callable tells
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(evaluate, "__name__", "evaluate")
        raise ConfigurationError(
            f"{name}{signature} is called with the model and nothing else, as {name}(model); give a function that takes one "
            f"argument, such as functools.partial or lambda model: {name}(model, ...), or give this one another name"
        ) from None


def _check_runs_when_called(train: Callable[..., object]) -> None:
    """Raise `ConfigurationError` for a function that does nothing when it is called but make a generator or coroutine."""
    plain = without_arguments(train)
    plain = plain if inspect.isroutine(plain) else type(plain).__call__
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"train={train!r} has a yield in it: calling it trains nothing; take the yield out")
    if inspect.iscoroutinefunction(plain):
        raise ConfigurationError(f"train={train!r} is an async def: calling it trains nothing; give it as a plain def")
