"""Checks of a rule's own numbers: one sentence each, with the value and what was allowed."""

from __future__ import annotations

from typing import Any

from plesio.errors import StrategyError


def whole(rule: str, field: str, value: Any, least: int) -> None:
    """Raise unless `value` is an int of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise StrategyError(f"{rule}({field}={value!r}): {field} must be a whole number of at least {least}")


def decay(rule: str, field: str, value: Any) -> None:
    """Raise unless `value` can be the decay of a running mean: at least 0 and below 1."""
    number(rule, field, value, least=0)
    if value >= 1:
        raise StrategyError(f"{rule}({field}={value!r}): {field} must be a number of at least 0 and below 1")


def number(rule: str, field: str, value: Any, *, above: float | None = None, least: float | None = None) -> None:
    """Raise unless `value` is a finite number above `above` or of at least `least`."""
    bound = f"above {above:g}" if above is not None else f"of at least {least:g}"
    real = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
    inside = real and (value > above if above is not None else least is None or value >= least)
    if not inside:
        raise StrategyError(f"{rule}({field}={value!r}): {field} must be a number {bound}")
