"""Named algorithms: functions of a few lines that return a `Strategy`.

A recipe is listed once, in the `__all__` of its family's file. `RECIPES`, the package's names and the tests take it from there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from plesio.entry import entry
from plesio.errors import StrategyError, unknown_name
from plesio.strategy import Strategy
from plesio.strategy.recipes import asynchronous, deltas, federated, local, synchronous
from plesio.strategy.recipes.asynchronous import *
from plesio.strategy.recipes.auto import *
from plesio.strategy.recipes.deltas import *
from plesio.strategy.recipes.elsewhere import OWN, in_python, known_elsewhere
from plesio.strategy.recipes.federated import *
from plesio.strategy.recipes.local import *
from plesio.strategy.recipes.phases import *
from plesio.strategy.recipes.synchronous import *

DEFAULT = "async_sgd"  # of a run that names no strategy
ONCE = {"h": "every"}  # what settings of recipes were called
RECIPES: dict[str, Callable[..., Strategy]] = {}
for _family in (synchronous, asynchronous, local, deltas, federated):
    for _name in _family.__all__:
        _once = ONCE if _family is deltas else {}
        RECIPES[_name] = entry(f"setting of {_name}", StrategyError, once=_once)(getattr(_family, _name))
        globals()[_name] = vars(_family)[_name] = RECIPES[_name]


def usual_first(workers: int) -> int:
    """How many workers `first_of` waits for if not told: all but 6%, rounded up (Chen et al. 2016)."""
    return max(1, workers - math.ceil(0.06 * workers))


USUAL: dict[str, tuple[str, Callable[[int], int], str]] = {
    "first_of": ("m", usual_first, "N - ceil(0.06 N)"),
    "quorum": ("k", lambda workers: workers // 2 + 1, "N // 2 + 1"),
}
"""Recipes with a setting that the number of workers gives, if it is not told: how, and in words."""


IN_PYTHON = {
    "phases": "ps.phases(ps.sync_sgd(), (1000, ps.local_sgd(16)))",
    "auto": "ps.auto([ps.sync_sgd(), ps.async_sgd()])",
}
"""What is made of several strategies: an example of each."""


def recipe(name: str, workers: int | None = None, /, **settings: Any) -> Strategy:
    """The strategy of the recipe called `name` with `settings`; those in `USUAL` take a default from the number of `workers`.

    Raises:
        StrategyError: no such recipe, no such setting, or a setting that cannot work; the known ones are listed.

    >>> recipe("buffered", k=3).name
    'buffered(k=3)'
    """
    if name not in RECIPES:
        hint = known_elsewhere(name)
        called = name.partition("(")[0]
        if not hint and called in IN_PYTHON:
            hint = f"in Python, give strategies: {IN_PYTHON[called]}"
        elif not hint and called in RECIPES:
            hint = f"in Python, write it without quotes: ps.{in_python(name)}"
        raise StrategyError(
            f"unknown strategy {name!r}; {hint}" if hint else unknown_name("strategy", name, RECIPES, OWN)
        )
    known = inspect.signature(RECIPES[name]).parameters
    if name in USUAL and workers is not None:
        setting, usual, _ = USUAL[name]
        settings.setdefault(setting, usual(workers))
    missing = [key for key, one in known.items() if one.default is inspect.Parameter.empty and key not in settings]
    if missing and settings.keys() <= known.keys():
        raise StrategyError(
            f"{name} needs a value for {', '.join(missing)}; for 4 workers, say, {name}({missing[0]}=3)"
        )
    return RECIPES[name](**settings)
