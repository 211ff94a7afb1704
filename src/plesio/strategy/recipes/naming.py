"""Names: of a strategy in tables (the call that makes it, without what is as by default), and of answers in that call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from plesio.errors import StrategyError, unknown_name
from plesio.strategy.answers import Answer, AtOnce, RowSteps, WithFold

T = TypeVar("T")
ROW_STEPS: Mapping[str, RowSteps] = {"with": WithFold(), "each": AtOnce()}
"""When rows of tables step: with the fold that a contribution is in, or by each contribution as it comes."""


def call(recipe: Callable[..., Any], *always: str, **settings: object) -> str:
    """The call of `recipe` in words: `always`, and those of its `settings` that differ from their defaults.

    >>> def soup(herb, *, salt="some", hot=True): ...
    >>> call(soup), call(soup, "dill", salt="much", hot=True)
    ('soup', 'soup(dill, salt=much)')
    """
    known = inspect.signature(recipe).parameters
    odd = (f"{key}={value}" for key, value in settings.items() if key in known and value != known[key].default)
    parts = ", ".join([*always, *odd])
    return f"{recipe.__name__}({parts})" if parts else recipe.__name__


def word(rule: object, known: Mapping[str, object]) -> str:
    """The name that `known` has for `rule`; for another, the call that makes it, without what is as by default.

    >>> from plesio.strategy.answers import Hinge
    >>> known = {"hinge": Hinge()}
    >>> word(Hinge(), known), word(Hinge(a=2.0), known)
    ('hinge', 'Hinge(a=2.0)')
    """
    for name, one in known.items():
        if one == rule:
            return name
    if not is_dataclass(rule):
        return str(rule)
    values = [(one.name, one.default, getattr(rule, one.name)) for one in fields(rule)]
    odd = ", ".join(f"{name}={value!r}" for name, default, value in values if value != default)
    return f"{type(rule).__name__}({odd})"


def known_as(what: str, given: str | T, known: Mapping[str, T]) -> T:
    """The answer of that name, or the one that is given."""
    if isinstance(given, Answer):
        return given
    if not isinstance(given, str) or given not in known:
        raise StrategyError(unknown_name(what, str(given), known))
    return known[given]
