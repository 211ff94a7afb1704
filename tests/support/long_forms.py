"""Parameters of which most are left to `make test-long`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def but_slow(every: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Each parameter; those are marked slow that are not among the `quick` ones, given by name where they have one.

    >>> [one if isinstance(one, str) else one.values for one in but_slow(["a", "b"], {"a"})]
    ['a', ('b',)]
    """
    named = [(getattr(one, "name", one), one) for one in every]
    assert {*quick} <= {name for name, _ in named}, f"no such parameter: { ({*quick} - {name for name, _ in named}) }"
    return [one if name in quick else pytest.param(one, marks=pytest.mark.slow) for name, one in named]
