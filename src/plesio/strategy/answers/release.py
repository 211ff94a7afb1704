"""Who may go on (`Release`), and what does a worker take back (`Adopt`)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.strategy.answers.answer import ONE_AT_MOST, PART, WHOLE, Answer
from plesio.strategy.answers.codec import CODEC_OR_NONE, Codec


@dataclass(frozen=True, slots=True)
class Freely(Answer):
    """A worker goes on as soon as its contribution was taken."""

    words: ClassVar[str] = "freely"
    unconditional: ClassVar[bool] = True

    def may_go(self, clock: int, slowest: int) -> bool:
        """Whether a worker that completed `clock` exchanges goes on while the slowest completed `slowest`."""
        return True


@dataclass(frozen=True, slots=True)
class Within(Answer):
    """A worker goes on while it is at most `clocks` ahead of the slowest live worker (stale synchronous parallel)."""

    clocks: Annotated[int, WHOLE]

    def may_go(self, clock: int, slowest: int) -> bool:
        return clock - slowest <= self.clocks

    def __str__(self) -> str:
        return f"within {self.clocks} clocks"


@dataclass(frozen=True, slots=True)
class AfterFold(Answer):
    """A worker goes on when its contribution was folded; `cancel_late` also calls off work the fold left behind."""

    cancel_late: bool = False
    after_fold: ClassVar[bool] = True

    def may_go(self, clock: int, slowest: int) -> bool:
        """Never by clock: the fold releases."""
        return False

    def __str__(self) -> str:
        return "after the fold" + (", late work cancelled" if self.cancel_late else "")


Release = Freely | Within | AfterFold


@dataclass(frozen=True, slots=True)
class Replace(Answer):
    """The global parameters, in place of its own. With a `codec`, about these: the packed difference from what it was shown
    before, so that what a packing leaves out is in the next. With `ahead=1` a worker that sends gradients computes the next one
    while the answer travels, on the parameters that it has."""

    codec: Annotated[Codec | None, CODEC_OR_NONE] = None
    ahead: Annotated[int, ONE_AT_MOST] = 0

    def __str__(self) -> str:
        return "replace" + ("" if self.codec is None else f", {self.codec}") + (", one ahead" if self.ahead else "")


@dataclass(frozen=True, slots=True)
class LookAhead(Answer):
    """About where the global parameters will be when its next contribution comes, by all n workers' momenta:
    w - lr mu (1 - 1/n) sum_j v_j. lr and mu are those of the last fold; where contributions are weighted, lr is times their
    running mean weight. `ahead`: as of `Replace`."""

    ahead: Annotated[int, ONE_AT_MOST] = 0
    codec: ClassVar[None] = None
    looks_ahead: ClassVar[bool] = True

    def __str__(self) -> str:
        return "look-ahead" + (", one ahead" if self.ahead else "")


@dataclass(frozen=True, slots=True)
class Blend(Answer):
    """Its own parameters, `alpha` of the way to the global ones: w += alpha (w_global - w) (elastic averaging)."""

    alpha: Annotated[float, PART]
    codec: ClassVar[None] = None
    blends: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.alpha:g} of the way"


@dataclass(frozen=True, slots=True)
class Rebase(Answer):
    """The worker goes on while the answer to what it sent travels. It takes it between two steps, and puts what it has done since
    on top: w = w_global + (w - w_sent). With an `alpha` below 1 it goes that part of the way, as with `Blend`:
    w += alpha (w_global - w_sent).

    `codec`: as of `Replace`. `away`: only workers on another host than the server go on, in rounds only those whose optimizer
    has no `momentum`; the others take the answer as with `Replace`, or `Blend`.

    Raises:
        StrategyError: `alpha` is not above 0 and at most 1.

    >>> str(Rebase()), str(Rebase(alpha=0.3, away=True))
    ('rebase', '0.3 of the way, rebased where away')
    """

    codec: Annotated[Codec | None, CODEC_OR_NONE] = None
    alpha: Annotated[float, PART] = 1.0
    away: bool = False
    late: ClassVar[bool] = True

    @property
    def blends(self) -> bool:  # type: ignore[override]
        """Whether its parameters go a part of the way only."""
        return self.alpha != 1.0

    def __str__(self) -> str:
        way = "rebase" if not self.blends else f"{self.alpha:g} of the way, rebased"
        return way + ("" if self.codec is None else f", {self.codec}") + (" where away" if self.away else "")


Adopt = Replace | LookAhead | Blend | Rebase
