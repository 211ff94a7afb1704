"""Who may go on?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plesio.strategy.answers import check


@dataclass(frozen=True, slots=True)
class Freely:
    """A worker goes on as soon as its contribution was taken."""

    after_fold: ClassVar[bool] = False
    cancel_late: ClassVar[bool] = False

    def may_go(self, clock: int, slowest: int) -> bool:
        """Whether a worker that completed `clock` exchanges goes on while the slowest completed `slowest`."""
        return True

    def __str__(self) -> str:
        return "freely"


@dataclass(frozen=True, slots=True)
class Within:
    """A worker goes on while it is at most `clocks` ahead of the slowest live worker (stale synchronous parallel)."""

    clocks: int
    after_fold: ClassVar[bool] = False
    cancel_late: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.whole("Within", "clocks", self.clocks, least=0)

    def may_go(self, clock: int, slowest: int) -> bool:
        """Whether a worker that completed `clock` exchanges goes on while the slowest completed `slowest`."""
        return clock - slowest <= self.clocks

    def __str__(self) -> str:
        return f"within {self.clocks} clocks"


@dataclass(frozen=True, slots=True)
class AfterFold:
    """A worker goes on when its contribution was folded; `cancel_late` also calls off work the fold left behind."""

    cancel_late: bool = False
    after_fold: ClassVar[bool] = True

    def may_go(self, clock: int, slowest: int) -> bool:
        """Never by clock: the fold releases."""
        return False

    def __str__(self) -> str:
        return "after the fold" + (", late work cancelled" if self.cancel_late else "")


Release = Freely | Within | AfterFold
