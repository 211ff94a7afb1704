"""Strategies as words: `first_of(m=3)`, `local_sgd(every=0.3s)`, `phases(sync_sgd, 1000: async_sgd)`. Parsed, never evaluated."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable

import msgspec

from plesio.errors import StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import Every, Privacy, SecureSums
from plesio.strategy.answers.work import span
from plesio.strategy.recipes import RECIPES, auto, phases, recipe, usual_first

Value = int | float | bool | str | Every | Privacy | SecureSums

IN_WORDS: dict[str, tuple[Callable[..., Privacy | SecureSums], dict[str, type], int, str]] = {
    "secure": (SecureSums, {"threshold": int, "clip": float}, 2, "secure=5:0.1"),
    "privacy": (
        Privacy,
        {"clip": float, "noise": float, "delta": float, "epsilon": float},
        3,
        "privacy=1:1.1:1e-5 of sites, or with a bound on epsilon privacy=1:1.1:1e-5:8",
    ),
}
"""Answers that are written as numbers with colons between: these, so many at least, and an example."""
_CALL = re.compile(r"\s*(\w[\w! -]*?)\s*(?:\((.*)\))?\s*", re.DOTALL)  # also a name that others have, such as Hogwild!
_BEGINS = re.compile(r"\s*(\d+)\s*:")
_SHOWN = re.compile(r"every (\S+?) ?(s|steps)")  # as `Steps` and `Seconds` show themselves in a table


def usual(workers: int) -> tuple[str, ...]:
    """The eight strategies compared when none is named, sized for that many workers.

    A buffer never holds one contribution: that is `async_sgd` by another name.
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


def strategy_of(text: str, workers: int, more: Iterable[str] = ()) -> Strategy:
    """The strategy written as NAME or NAME(key=value, ...); `more` holds further key=value."""
    call = _CALL.fullmatch(text)
    if call is None:
        raise StrategyError(
            f"strategy {text!r} cannot be read; write NAME or NAME(key=value, ...), such as first_of(m=3)"
        )
    name, inside = call.group(1), call.group(2) or ""
    if name == phases.__name__:
        given = [_phase(part, workers) for part in [*_split(inside), *more] or [""]]
        return phases(*given)  # type: ignore[arg-type]  # it says what is wrong with them
    if name == auto.__name__:
        choices = [strategy_of(part, workers) for part in _split(inside)]
        return auto(choices, **dict(_setting(name, part, None) for part in more))  # type: ignore[arg-type]
    if name not in RECIPES:
        recipe(name, workers)  # raises, with the names that there are
    settings: dict[str, Value] = {}
    for key, value in (_setting(name, part, k) for k, part in enumerate(_split(inside))):
        if key in settings:
            raise StrategyError(f"strategy {text!r} says {key} twice: {settings[key]!r} and {value!r}")
        settings[key] = value
    settings |= dict(_setting(name, part, None) for part in more)
    return recipe(name, workers, **settings)


def strategies_of(text: str, workers: int) -> list[Strategy]:
    """Several of them, with commas between."""
    parts = _split(text)
    if not parts:
        raise StrategyError(f"no strategy is named; known: {', '.join(sorted(RECIPES))}")
    return [strategy_of(part, workers) for part in parts]


def _split(text: str) -> list[str]:
    """At commas outside parentheses."""
    parts, depth = [""], 0
    for one in text:
        depth += (one == "(") - (one == ")")
        if one == "," and not depth:
            parts.append("")
        else:
            parts[-1] += one
    return [part.strip() for part in parts if part.strip()]


def _phase(text: str, workers: int) -> Strategy | tuple[int, Strategy]:
    """STRATEGY, or VERSION: STRATEGY."""
    begins = _BEGINS.match(text)
    if begins is None:
        return strategy_of(text, workers)
    return int(begins[1]), strategy_of(text[begins.end() :], workers)


def _setting(name: str, text: str, position: int | None) -> tuple[str, Value]:
    """key=value; or in parentheses a bare value, which is the setting at that position."""
    shown = _SHOWN.fullmatch(text)
    if shown is not None:
        text = f"every={shown.group(1)}{'s' if shown.group(2) == 's' else ''}"
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals and position is not None:
        keys = list(inspect.signature(RECIPES[name]).parameters)
        key, value = (keys[position], key) if position < len(keys) else (key, "")
    if not key or not value:
        raise StrategyError(f"setting {text!r} of {name} cannot be read; write key=value, such as every=16")
    return key, _value(key, value)


def _value(key: str, text: str) -> Value:
    """A whole number, a number, true or false, or the text itself; for `every` steps or seconds; for others as in `IN_WORDS`."""
    if key == "every":
        return span(text)
    if key in IN_WORDS:
        return _with_colons(key, text)
    try:
        return msgspec.convert(text, int | float | bool, strict=False)
    except msgspec.ValidationError:
        return text.strip("'\"")


def _with_colons(key: str, text: str) -> Privacy | SecureSums:
    answer, fields, least, such_as = IN_WORDS[key]
    parts = text.split(":")
    try:
        numbers = {field: kind(part) for (field, kind), part in zip(fields.items(), parts, strict=False)}
    except ValueError:
        numbers = {}
    if not least <= len(numbers) == len(parts):
        raise StrategyError(f"{key}={text}: write {':'.join(fields).upper()}, such as {such_as}")
    return answer(**numbers)
