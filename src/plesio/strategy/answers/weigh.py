"""How much does a contribution count?

A weight multiplies the step its contribution makes, so it also works under an optimizer that is blind to the scale of
the gradient (Adam). `normalised` weights are divided by their sum over the fold: they only share it out.

No weight is below `SMALLEST`, however stale the contribution: the weights of a fold are divided by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plesio.core.questions import Arrival
from plesio.strategy.answers import check

SMALLEST = 1e-6
"""A millionth of a step moves nothing; a gradient times this, and divided by it again, is finite in any precision."""


@dataclass(frozen=True, slots=True)
class Equal:
    """Every contribution counts the same."""

    normalised: ClassVar[bool] = False

    def weight(self, one: Arrival) -> float:
        """1."""
        return 1.0

    def __str__(self) -> str:
        return "equal"


@dataclass(frozen=True, slots=True)
class Inverse:
    """1 / max(tau, 1): staleness-aware SGD (Zhang et al. 2016, arXiv 1511.05950)."""

    normalised: ClassVar[bool] = False

    def weight(self, one: Arrival) -> float:
        """The weight of this contribution."""
        return max(1.0 / max(one.staleness, 1), SMALLEST)

    def __str__(self) -> str:
        return "1/staleness"


@dataclass(frozen=True, slots=True)
class Polynomial:
    """(1 + tau)^-a (Xie et al. 2019, arXiv 1903.03934)."""

    a: float = 0.5
    normalised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.number("Polynomial", "a", self.a, least=0)

    def weight(self, one: Arrival) -> float:
        """The weight of this contribution."""
        return max(float((1.0 + one.staleness) ** -self.a), SMALLEST)

    def __str__(self) -> str:
        return f"(1+staleness)^-{self.a:g}"


@dataclass(frozen=True, slots=True)
class Hinge:
    """1 if tau <= b, else 1 / (a (tau - b) + 1) (Xie et al. 2019, arXiv 1903.03934)."""

    a: float = 10.0
    b: int = 4
    normalised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.number("Hinge", "a", self.a, above=0)
        check.whole("Hinge", "b", self.b, least=0)

    def weight(self, one: Arrival) -> float:
        """The weight of this contribution."""
        late = one.staleness - self.b
        return 1.0 if late <= 0 else max(1.0 / (self.a * late + 1.0), SMALLEST)

    def __str__(self) -> str:
        return f"hinge after {self.b}"


@dataclass(frozen=True, slots=True)
class DelayAdaptive:
    """min(1, N / tau) for N workers (Mishchenko et al. 2022, arXiv 2206.07638)."""

    normalised: ClassVar[bool] = False

    def weight(self, one: Arrival) -> float:
        """The weight of this contribution."""
        return 1.0 if one.staleness <= one.workers else max(one.workers / one.staleness, SMALLEST)

    def __str__(self) -> str:
        return "workers/staleness"


@dataclass(frozen=True, slots=True)
class AdaDelay:
    """1 / (1 + c sqrt(t + tau)) at version t (Sra et al. 2016, arXiv 1508.05003)."""

    c: float = 0.01
    normalised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.number("AdaDelay", "c", self.c, least=0)

    def weight(self, one: Arrival) -> float:
        """The weight of this contribution."""
        return max(1.0 / (1.0 + self.c * float((one.version + one.staleness) ** 0.5)), SMALLEST)

    def __str__(self) -> str:
        return f"1/(1+{self.c:g} sqrt(version+staleness))"


@dataclass(frozen=True, slots=True)
class BySamples:
    """In proportion to the samples behind the contribution (the n_k / n of federated averaging)."""

    normalised: ClassVar[bool] = True

    def weight(self, one: Arrival) -> float:
        """The work behind the contribution: its samples, or its steps if those are unknown; at least 1."""
        return float(max(one.work, 1))

    def __str__(self) -> str:
        return "by samples"


Weigh = Equal | Inverse | Polynomial | Hinge | DelayAdaptive | AdaDelay | BySamples
