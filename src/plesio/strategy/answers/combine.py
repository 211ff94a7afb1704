"""How do the contributions of a fold become one (`Combine`)? Numbers only: the arithmetic is in `plesio.tensors.combining`.

The robust ones keep the result among what the others sent, whatever a few members send, and members count alike. Each
contribution lies in its worker's slot until the round is folded, so this takes no more memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import BELOW_HALF, COUNT, NAME, WHOLE, Answer


@dataclass(frozen=True, slots=True)
class Mean(Answer):
    """The mean, by weight."""

    adds_up: ClassVar[bool] = True
    words: ClassVar[str] = "mean"


@dataclass(frozen=True, slots=True)
class Median(Answer):
    """The median of each coordinate; of an even number the mean of the two in the middle. Fewer than half may send anything.

    Source: Yin et al. 2018, arXiv 1803.01498.
    """

    robust: ClassVar[bool] = True
    words: ClassVar[str] = "median"

    @property
    def needs(self) -> int:
        return 3


@dataclass(frozen=True, slots=True)
class TrimmedMean(Answer):
    """The mean of each coordinate, of n contributions, without its floor(part n) smallest and as many largest values. As many
    members may send anything. Of fewer than 1 / part nothing would be cut.

    Args:
        part: the share that is cut at each end (beta), of at least 0 and below .5.

    Source: Yin et al. 2018, arXiv 1803.01498.

    Raises:
        StrategyError: another `part`.

    >>> str(TrimmedMean(0.25)), TrimmedMean(0.25).needs
    ('mean without 0.25 at each end', 4)
    """

    part: Annotated[float, BELOW_HALF] = 0.2
    robust: ClassVar[bool] = True

    @property
    def needs(self) -> int:
        return ceil(1 / self.part) if self.part else 1

    def __str__(self) -> str:
        return f"mean without {self.part:.3g} at each end"


@dataclass(frozen=True, slots=True)
class Krum(Answer):
    """The contribution that is closest to the others, or the mean of so many (multi-Krum), over all trained parameters together.

    Rule: s_i = the sum of ||d_i - d_j||^2 over the n - f - 2 contributions d_j nearest to d_i; the lowest s_i are kept.

    Args:
        f: how many members may send anything, of at least 2 f + 3.
        keep: how many are kept, of at least keep + f.

    Source: Blanchard et al. 2017, arXiv 1703.02757.

    Raises:
        StrategyError: `f` is no whole number of at least 0, or `keep` none of at least 1.

    >>> str(Krum(f=2)), Krum(f=2).needs, Krum(f=1, keep=5).needs
    ('Krum (f=2)', 7, 6)
    """

    f: Annotated[int, WHOLE] = 1
    keep: Annotated[int, COUNT] = 1
    robust: ClassVar[bool] = True

    @property
    def needs(self) -> int:
        return max(2 * self.f + 3, self.keep + self.f)

    def __str__(self) -> str:
        return f"Krum (f={self.f}" + (f", keep={self.keep})" if self.keep > 1 else ")")


@dataclass(frozen=True, slots=True)
class LowRank(Answer):
    """Adapters by their products: of LoRA's factors B_i and A_i the mean of B_i A_i by weight, cut back to their rank.

    Rule: B A = the closest of rank r to sum_i p_i B_i A_i, by a singular value decomposition; A = mean(A) V V', V its right
    singular vectors, made no shorter in any direction than the workers' A are. The means of A and B apart have another product,
    (sum p_i B_i)(sum p_i A_i). All other tensors have their mean. Of differences (`fedavg`, `diloco`) B_i and A_i are the
    version's factors less what was sent, and the result is told as a difference again.

    The product is the next version only where that is what came. So no momentum and no other rate may move it: they would move A
    and B apart. `diloco` takes it with lr=1.0 and momentum=0 alone, `decoupled` with `outer=Outer("SGD", lr=1.0)`.

    Args:
        a, b: what a part of their names is, between dots; `*` in both stands for the same text. The default is peft's naming:
            `lora_A` and `lora_B`, `lora_embedding_A` and `lora_embedding_B`. A of shape (r, in, ...), B of shape (out, r, ...).

    Source: Bai et al. 2024 (FlexLoRA), arXiv 2402.11505; of the means' error: Wang et al. 2024 (FLoRA), arXiv 2409.05976.

    Raises:
        StrategyError: `a` or `b` is no such name, or one of them alone has a `*`. As a run begins, ConfigurationError: a model
            has no trained pair, or one whose shapes do not match.

    >>> str(LowRank()), str(LowRank(a="down", b="up"))
    ('mean of lora_*B lora_*A', 'mean of up down')
    """

    a: Annotated[str, NAME] = "lora_*A"
    b: Annotated[str, NAME] = "lora_*B"
    products: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Answer.__post_init__(self)
        if self.a == self.b or self.a.count("*") != self.b.count("*"):
            raise StrategyError(f"{self!r}: a and b must differ, and have a * both or neither")

    def __str__(self) -> str:
        return f"mean of {self.b} {self.a}"


Combine = Mean | Median | TrimmedMean | Krum | LowRank
COMBINES: dict[str, Combine] = {
    "mean": Mean(),
    "median": Median(),
    "trimmed_mean": TrimmedMean(),
    "krum": Krum(),
    "low_rank": LowRank(),
}
"""By name, with their usual numbers."""
