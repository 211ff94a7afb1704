"""Does a contribution count?"""

from __future__ import annotations

from dataclasses import dataclass

from plesio.strategy.answers import check


@dataclass(frozen=True, slots=True)
class Everything:
    """Every contribution counts, however stale."""

    def admits(self, staleness: int) -> bool:
        """Whether a contribution that many versions stale counts."""
        return True

    def __str__(self) -> str:
        return "everything"


@dataclass(frozen=True, slots=True)
class Fresh:
    """Only contributions at most `within` versions stale count; 0 means computed at the current version."""

    within: int

    def __post_init__(self) -> None:
        check.whole("Fresh", "within", self.within, least=0)

    def admits(self, staleness: int) -> bool:
        """Whether a contribution that many versions stale counts."""
        return staleness <= self.within

    def __str__(self) -> str:
        return "this version only" if self.within == 0 else f"staleness <= {self.within}"


Admit = Everything | Fresh
