"""Parameters of which most are left to `make test-long`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def but_slow(every: Iterable[Any], quick: Container[str]) -> list[Any]:
    """Each parameter; those whose name is not among the `quick` ones are marked slow.

    >>> [one if isinstance(one, str) else one.values for one in but_slow(["a", "b"], {"a"})]
    ['a', ('b',)]
    """
    return [one if getattr(one, "name", one) in quick else pytest.param(one, marks=pytest.mark.slow) for one in every]
