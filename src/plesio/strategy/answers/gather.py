"""When do contributions become a new version?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plesio.strategy.answers import check


@dataclass(frozen=True, slots=True)
class Each:
    """Every contribution makes a new version as it comes."""

    in_rounds: ClassVar[bool] = False

    def size(self, reachable: int | None) -> int:
        """How many contributions a fold takes when `reachable` can come together (None: any number)."""
        return 1

    def __str__(self) -> str:
        return "each"


@dataclass(frozen=True, slots=True)
class Buffer:
    """`k` contributions make a new version, whoever sent them."""

    k: int
    in_rounds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.whole("Buffer", "k", self.k, least=1)

    def size(self, reachable: int | None) -> int:
        """How many contributions a fold takes when `reachable` can come together (None: any number)."""
        return self.k if reachable is None else min(self.k, max(reachable, 1))

    def __str__(self) -> str:
        return f"buffer of {self.k}"


@dataclass(frozen=True, slots=True)
class Round:
    """One contribution of each worker makes a new version; the `first` of them, if given."""

    first: int | None = None
    in_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.first is not None:
            check.whole("Round", "first", self.first, least=1)

    def size(self, reachable: int | None) -> int:
        """How many contributions a fold takes when `reachable` can come together (None: any number)."""
        everybody = max(reachable or 1, 1)
        return everybody if self.first is None else min(self.first, everybody)

    def __str__(self) -> str:
        return "round of all" if self.first is None else f"round, first {self.first}"


Gather = Each | Buffer | Round
