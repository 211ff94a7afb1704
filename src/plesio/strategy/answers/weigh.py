"""Does a contribution count (`Admit`), and how much (`Weigh`)?

A weight multiplies the step its contribution makes, so it also works under an optimizer that is blind to the scale of
the gradient (Adam). `normalised` weights are divided by their sum over the fold: they only share it out.

No weight is below `SMALLEST`, however stale the contribution: the weights of a fold are divided by their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.strategy.answers.answer import NUMBER, POSITIVE, WHOLE, Answer
from plesio.strategy.questions import Arrival

SMALLEST = 1e-6
"""A millionth of a step moves nothing; a gradient times this, and divided by it again, is finite in any precision."""


@dataclass(frozen=True, slots=True)
class Everything(Answer):
    """Every contribution counts, however stale."""

    words: ClassVar[str] = "everything"
    unconditional: ClassVar[bool] = True

    def admits(self, staleness: int) -> bool:
        """Whether a contribution that many versions stale counts."""
        return True


@dataclass(frozen=True, slots=True)
class Fresh(Answer):
    """Only contributions at most `within` versions stale count; 0 means computed at the current version."""

    within: Annotated[int, WHOLE]

    def admits(self, staleness: int) -> bool:
        return staleness <= self.within

    def __str__(self) -> str:
        return "this version only" if self.within == 0 else f"staleness <= {self.within}"


Admit = Everything | Fresh


@dataclass(frozen=True, slots=True)
class Equal(Answer):
    """Every contribution counts the same."""

    words: ClassVar[str] = "equal"
    unconditional: ClassVar[bool] = True

    def weight(self, one: Arrival) -> float:
        """How much this contribution counts."""
        return 1.0


@dataclass(frozen=True, slots=True)
class Inverse(Answer):
    """1 / max(tau, 1): staleness-aware SGD (Zhang et al. 2016, arXiv 1511.05950)."""

    words: ClassVar[str] = "1/staleness"

    def weight(self, one: Arrival) -> float:
        return max(1.0 / max(one.staleness, 1), SMALLEST)


@dataclass(frozen=True, slots=True)
class Polynomial(Answer):
    """(1 + tau)^-a (Xie et al. 2019, arXiv 1903.03934)."""

    a: Annotated[float, NUMBER] = 0.5

    def weight(self, one: Arrival) -> float:
        return max(float((1.0 + one.staleness) ** -self.a), SMALLEST)

    def __str__(self) -> str:
        return f"(1+staleness)^-{self.a:g}"


@dataclass(frozen=True, slots=True)
class Hinge(Answer):
    """1 if tau <= b, else 1 / (a (tau - b) + 1) (Xie et al. 2019, arXiv 1903.03934)."""

    a: Annotated[float, POSITIVE] = 10.0
    b: Annotated[int, WHOLE] = 4

    def weight(self, one: Arrival) -> float:
        late = one.staleness - self.b
        return 1.0 if late <= 0 else max(1.0 / (self.a * late + 1.0), SMALLEST)

    def __str__(self) -> str:
        return f"hinge after {self.b}"


@dataclass(frozen=True, slots=True)
class DelayAdaptive(Answer):
    """min(1, N / tau) for N workers (Mishchenko et al. 2022, arXiv 2206.07638)."""

    words: ClassVar[str] = "workers/staleness"

    def weight(self, one: Arrival) -> float:
        return 1.0 if one.staleness <= one.workers else max(one.workers / one.staleness, SMALLEST)


@dataclass(frozen=True, slots=True)
class AdaDelay(Answer):
    """1 / (1 + c sqrt(t + tau)) at version t (Sra et al. 2016, arXiv 1508.05003)."""

    c: Annotated[float, NUMBER] = 0.01

    def weight(self, one: Arrival) -> float:
        return max(1.0 / (1.0 + self.c * float((one.version + one.staleness) ** 0.5)), SMALLEST)

    def __str__(self) -> str:
        return f"1/(1+{self.c:g} sqrt(version+staleness))"


@dataclass(frozen=True, slots=True)
class BySamples(Answer):
    """In proportion to the samples behind the contribution (the n_k / n of federated averaging), times (1 + tau)^-a."""

    a: Annotated[float, NUMBER] = 0.0
    normalised: ClassVar[bool] = True

    def weight(self, one: Arrival) -> float:
        """The work behind the contribution: its samples, or its steps if those are unknown; at least 1."""
        staled = max(float((1.0 + one.staleness) ** -self.a), SMALLEST) if self.a else 1.0
        return max(1, one.work) * staled

    def __str__(self) -> str:
        return "by samples" + (f" (1+staleness)^-{self.a:g}" if self.a else "")


Weigh = Equal | Inverse | Polynomial | Hinge | DelayAdaptive | AdaDelay | BySamples
