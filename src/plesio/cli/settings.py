"""Strategies as words: `first_of(m=3)`, `local_sgd(every=0.3s)`. Parsed, never evaluated."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable

from plesio.errors import StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import Seconds, Steps
from plesio.strategy.recipes import RECIPES, recipe

Value = int | float | bool | str | Steps | Seconds

_CALL = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SHOWN = re.compile(r"every (\S+?) ?(s|steps)")  # as `Steps` and `Seconds` show themselves in a table


def usual(workers: int) -> tuple[str, ...]:
    """The strategies compared when none is named: the eight ways to keep step, sized for that many workers.

    A buffer holds half as many contributions as there are workers, and never one: that is `async_sgd` by another name.

    >>> [name for workers in (1, 3, 8) for name in usual(workers) if name.startswith("buffered")]
    ['buffered(k=2)', 'buffered(k=2)', 'buffered(k=4)']
    """
    return (
        "allreduce",
        "sync_sgd",
        f"first_of(m={usual_first(workers)})",
        "bounded_staleness",
        f"buffered(k={max(2, workers // 2)})",
        "async_sgd",
        "local_sgd(every=0.3s)",
        "hogwild",
    )


def usual_first(workers: int) -> int:
    """How many workers `first_of` waits for if not told: all but 6%, rounded up (Chen et al. 2016).

    >>> [usual_first(n) for n in (1, 2, 4, 16, 100)]
    [1, 1, 3, 15, 94]
    """
    return max(1, workers - math.ceil(0.06 * workers))


def strategy_of(text: str, workers: int, more: Iterable[str] = ()) -> Strategy:
    """The strategy written as NAME or NAME(key=value, ...); `more` holds further key=value.

    Raises:
        StrategyError: not written like that, or no such strategy or setting.

    >>> strategy_of("local_sgd(every=0.3s)", 4).name, strategy_of("first_of", 4).name
    ('local_sgd(every 0.3 s)', 'first_of(3)')
    >>> strategy_of("buffered", 4, ["k=3"]).name
    'buffered(k=3)'
    """
    call = _CALL.fullmatch(text)
    if call is None:
        raise StrategyError(
            f"strategy {text!r} cannot be read; write NAME or NAME(key=value, ...), such as first_of(m=3)"
        )
    name, inside = call.group(1), call.group(2) or ""
    settings: dict[str, Value] = {}
    for key, value in [_setting(name, part, k) for k, part in enumerate(_split(inside))]:
        if key in settings:
            raise StrategyError(f"strategy {text!r} says {key} twice: {settings[key]!r} and {value!r}")
        settings[key] = value
    settings |= dict(_setting(name, part, None) for part in more)
    if name == "first_of":
        settings.setdefault("m", usual_first(workers))
    return recipe(name, **settings)


def strategies_of(text: str, workers: int) -> list[Strategy]:
    """Several of them, with commas between.

    >>> [one.name for one in strategies_of("sync_sgd, async_sgd(correct=plain, weigh=inverse)", 4)]
    ['sync_sgd', 'async_sgd(correct=plain, weigh=inverse)']
    """
    parts = _split(text)
    if not parts:
        raise StrategyError(f"no strategy is named; known: {', '.join(sorted(RECIPES))}")
    return [strategy_of(part, workers) for part in parts]


def _split(text: str) -> list[str]:
    """At commas outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def _setting(name: str, text: str, position: int | None) -> tuple[str, Value]:
    """key=value; or in parentheses a bare value, which is the setting at that position."""
    shown = _SHOWN.fullmatch(text)
    if shown is not None:
        text = f"every={shown.group(1)}{'s' if shown.group(2) == 's' else ''}"
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals and position is not None and name in RECIPES:
        keys = list(inspect.signature(RECIPES[name]).parameters)
        key, value = (keys[position], key) if position < len(keys) else (key, "")
    if not key or not value:
        raise StrategyError(f"setting {text!r} of {name} cannot be read; write key=value, such as every=16")
    return key, _value(key, value)


def _value(key: str, text: str) -> Value:
    """A whole number, a number, true or false, or the text itself; for `every` steps or seconds.

    >>> _value("every", "16"), _value("every", "0.3s"), _value("k", "3"), _value("cancel_late", "false")
    (Steps(steps=16), Seconds(seconds=0.3), 3, False)
    """
    if key == "every":
        return _span(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text.strip("'\"")


def _span(text: str) -> Steps | Seconds:
    if _WHOLE.fullmatch(text):
        return Steps(int(text))
    number = text.removesuffix("s").strip()
    if text.endswith("s") and _NUMBER.fullmatch(number):
        return Seconds(float(number))
    raise StrategyError(f"every={text}: write whole steps, such as every=16, or seconds, such as every=0.3s")
