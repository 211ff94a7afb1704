"""What does a worker take back?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Replace:
    """The global parameters, in place of its own."""

    looks_ahead: ClassVar[bool] = False

    def __str__(self) -> str:
        return "replace"


@dataclass(frozen=True, slots=True)
class LookAhead:
    """About where the global parameters will be when its next contribution comes, by all n workers' momenta:
    w - lr mu (1 - 1/n) sum_j v_j. lr and mu are those of the last fold; where contributions are weighted, lr is times their
    running mean weight."""

    looks_ahead: ClassVar[bool] = True

    def __str__(self) -> str:
        return "look-ahead"


Adopt = Replace | LookAhead
