"""How is a stale contribution corrected before it is folded? Numbers only: the arithmetic is in `plesio.tensors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plesio.strategy.answers import check


@dataclass(frozen=True, slots=True)
class Plain:
    """Not at all: folded as it comes."""

    state_copies: ClassVar[int] = 0

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class WorkerMomentum:
    """One momentum for each worker instead of a common one: half of DANA, the other half is `adopt=LookAhead()`.

    Hakimi et al. 2019, arXiv 1907.11612.
    """

    state_copies: ClassVar[int] = 0

    def __str__(self) -> str:
        return "momentum by worker"


@dataclass(frozen=True, slots=True)
class DelayCompensated:
    """g + lam g*g*(w_t - w_{t-tau}); adaptive: lam / sqrt(EMA(g*g) + eps) in place of lam.

    DC-ASGD, Zheng et al. 2017, arXiv 1609.08326. The backup w_{t-tau} is kept for each worker.
    """

    lam: float = 2.0
    adaptive: bool = True
    decay: float = 0.95
    eps: float = 1e-7

    def __post_init__(self) -> None:
        check.number("DelayCompensated", "lam", self.lam, least=0)
        check.decay("DelayCompensated", "decay", self.decay)
        check.number("DelayCompensated", "eps", self.eps, above=0)

    @property
    def state_copies(self) -> int:
        """How many tensors the size of the model it keeps: the adaptive form a running mean of squares."""
        return int(self.adaptive)

    def __str__(self) -> str:
        return "delay compensation" + (" (adaptive)" if self.adaptive else "")


@dataclass(frozen=True, slots=True)
class GapAware:
    """g / (1 + |w_t - w_{t-tau}| / C), elementwise, C the running mean step (Barkai et al. 2020, arXiv 1909.10802)."""

    decay: float = 0.99
    state_copies: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check.decay("GapAware", "decay", self.decay)

    def __str__(self) -> str:
        return "gap-aware"


Correct = Plain | WorkerMomentum | DelayCompensated | GapAware
