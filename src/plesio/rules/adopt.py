"""What does a worker take back?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replace:
    """The global parameters, in place of its own."""

    def __str__(self) -> str:
        return "replace"


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Where the global parameters will be once the other workers' momenta have acted: w - lr mu sum_{j != i} v_j."""

    def __str__(self) -> str:
        return "look-ahead"
