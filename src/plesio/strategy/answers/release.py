"""Who may go on (`Release`), and what does a worker take back (`Adopt`)?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.strategy.answers.answer import PART, WHOLE, Answer
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
    before, so that what a packing leaves out is in the next."""

    codec: Annotated[Codec | None, CODEC_OR_NONE] = None

    def __str__(self) -> str:
        return "replace" if self.codec is None else f"replace, {self.codec}"


@dataclass(frozen=True, slots=True)
class LookAhead(Answer):
    """About where the global parameters will be when its next contribution comes, by all n workers' momenta:
    w - lr mu (1 - 1/n) sum_j v_j. lr and mu are those of the last fold; where contributions are weighted, lr is times their
    running mean weight."""

    codec: ClassVar[None] = None
    looks_ahead: ClassVar[bool] = True
    words: ClassVar[str] = "look-ahead"


@dataclass(frozen=True, slots=True)
class Blend(Answer):
    """Its own parameters, `alpha` of the way to the global ones: w += alpha (w_global - w) (elastic averaging)."""

    alpha: Annotated[float, PART]
    codec: ClassVar[None] = None
    blends: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.alpha:g} of the way"


Adopt = Replace | LookAhead | Blend
