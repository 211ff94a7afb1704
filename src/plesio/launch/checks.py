"""Whether a run's functions can be what they are given as."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from plesio.config import RunConfig
from plesio.config.rules import FUNCTIONS, ROUNDS, refuse
from plesio.errors import ConfigurationError
from plesio.observe.provenance import without_arguments
from plesio.strategy.rules import why_not


def check_functions(
    config: RunConfig, train: Any, evaluate: object, watch: object, model: object = None, on_round: object = None
) -> None:
    """Raise `ConfigurationError` for a function of the user's that cannot be called, or one that is missing."""
    functions = {
        "train": (train, "a ps.Worker"),
        "watch": (watch, "the state of the run (or True, for the live page)"),
        "on_round": (on_round, "a round"),
        "model": (model, "nothing and builds the model that evaluate is given"),
        "evaluate": (evaluate, "the model and returns names and numbers"),
    }
    for name, (given, what) in functions.items():
        if given is not None and not callable(given):
            raise ConfigurationError(f"{name}={given!r}: a function that takes {what}")
    if isinstance(model, nn.Module):
        raise ConfigurationError(
            f"model={type(model).__name__}(...): give what builds it, uncalled (model=build), for the evaluator's process"
        )
    plain = without_arguments(train)
    plain = plain if inspect.isroutine(plain) else type(plain).__call__
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"train={train!r} has a yield in it: calling it trains nothing; take the yield out")
    if inspect.iscoroutinefunction(plain):
        raise ConfigurationError(f"train={train!r} is an async def: calling it trains nothing; give it as a plain def")
    check_takes_worker(train)
    refuse(FUNCTIONS, config, evaluate, on_round)


def check_rounds(config: RunConfig, on_round: Any) -> None:
    """Raise `ConfigurationError` unless `on_round`, if there is one, can be called with the rounds of this run."""
    if on_round is None:
        return
    if why := why_not(ROUNDS, config.strategy):
        raise ConfigurationError(
            f"on_round= looks at rounds, and under {config.strategy.name} {why}; take fedavg, fedopt, fedprox, local_sgd or "
            "sync_sgd, or evaluate="
        )
    try:
        signature = inspect.signature(on_round)
    except ValueError:
        return  # it is compiled and does not tell
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError(f"on_round{signature}: it is called with one argument, the round") from None


def check_takes_worker(train: Any, where: str = "", instead: str = "") -> None:
    """Raise `ConfigurationError` for a training function that cannot be called with one argument."""
    try:
        signature = inspect.signature(train, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # there is none, or it is compiled and does not tell
    try:
        signature.bind(None)
    except TypeError:
        bare = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
        name = getattr(without_arguments(train), "__name__", "train")
        found = signature.replace(parameters=bare, return_annotation=signature.empty)
        raise ConfigurationError(
            f"{name}{found}{where} cannot be the training function: plesio calls it with one "
            f"argument, the worker; write {name}(worker), and make inside what else it needs, or give that by "
            f"functools.partial{instead}"
        ) from None
