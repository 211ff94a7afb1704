"""What is left to `make test-all` (marked thorough) and to `make test-long` (marked slow): most parameters of a test, most
examples of a property."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings


def examples(quick: int) -> int:
    """So many examples of a property in `make test-all`; less than half of them in `make test`, five times as many in
    `make test-long`."""
    return quick * settings().max_examples // 25


def but_slow(every: Iterable[Any], quick: Collection[Any], later: pytest.MarkDecorator = pytest.mark.slow) -> list[Any]:
    """Each parameter; those are marked slow that are not among the `quick` ones, given by name where they have one.

    >>> [one if isinstance(one, str) else one.values for one in but_slow(["a", "b"], {"a"})]
    ['a', ('b',)]
    """
    named = [(getattr(one, "name", one), one) for one in every]
    assert {*quick} <= {name for name, _ in named}, f"no such parameter: { ({*quick} - {name for name, _ in named}) }"
    return [one if name in quick else pytest.param(one, marks=later) for name, one in named]


def but_thorough(every: Iterable[Any], quick: Collection[Any], then: Collection[Any] | None = None) -> list[Any]:
    """Each parameter; those that are not among the `quick` ones are left to `make test-all`. With `then`: those of them that are
    not in `then`, to `make test-long`."""
    every = list(every)
    soon = [one for one in every if then is None or getattr(one, "name", one) in {*quick, *then}]
    once = but_slow(soon, quick, pytest.mark.thorough)
    return [*once, *(pytest.param(one, marks=pytest.mark.slow) for one in every if one not in soon)]


def in_turn(first: Sequence[Any], second: Sequence[Any], later: pytest.MarkDecorator = pytest.mark.slow) -> list[Any]:
    """Each pair; all are marked slow (or as `later` says) but those that take both lists in step, the shorter one again and
    again. So each value is in a quick one.

    >>> [one.values for one in in_turn("ab", "xyz") if not one.marks]
    [('a', 'x'), ('a', 'z'), ('b', 'y')]
    """
    quick = {(turn % len(first), turn % len(second)) for turn in range(max(len(first), len(second)))}
    return [
        pytest.param(one, other, marks=() if (i, j) in quick else later)
        for (i, one), (j, other) in product(enumerate(first), enumerate(second))
    ]


def leave_rows(items: Sequence[pytest.Item]) -> None:
    """Of a test marked `few(n)`, `make test` runs n rows, spread evenly over those that no other mark leaves out. The others
    become thorough."""
    rows = defaultdict[tuple[object, str], list[pytest.Item]](list)
    for item in items:
        if (
            item.get_closest_marker("few")
            and not item.get_closest_marker("slow")
            and not item.get_closest_marker("thorough")
        ):
            rows[item.path, item.name.partition("[")[0]].append(item)
    for one in rows.values():
        (wanted,) = one[0].get_closest_marker("few").args  # type: ignore[union-attr]
        for turn, item in enumerate(one):
            if turn and (turn - 1) * wanted // len(one) == turn * wanted // len(one):
                item.add_marker("thorough")
