"""How do the contributions of a fold become one (`Combine`)? Numbers only: the arithmetic is in `plesio.tensors.combining`.

All but the mean are robust: a few members may send anything, and the result stays among what the others sent. For that each
contribution is looked at by itself, as it lies in its worker's slot until the round is folded. Members count alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

from plesio.errors import StrategyError, unknown_name
from plesio.strategy.answers.answer import BELOW_HALF, COUNT, WHOLE, Answer


@dataclass(frozen=True, slots=True)
class Mean(Answer):
    """The mean, by weight."""

    least: ClassVar[int] = 1
    words: ClassVar[str] = "mean"


@dataclass(frozen=True, slots=True)
class Median(Answer):
    """The median of each coordinate; of an even number the mean of the two in the middle. Fewer than half may lie.

    Source: Yin et al. 2018, arXiv 1803.01498.
    """

    least: ClassVar[int] = 3
    robust: ClassVar[bool] = True
    words: ClassVar[str] = "median"


@dataclass(frozen=True, slots=True)
class TrimmedMean(Answer):
    """The mean of each coordinate without its floor(part n) smallest and as many largest values, of n contributions. As many
    members may lie.

    Args:
        part: the share that is cut at each end (the paper's beta). A round needs 1 / part members, or nothing would be cut.

    Source: Yin et al. 2018, arXiv 1803.01498.

    Raises:
        StrategyError: `part` is no number of at least 0 and below .5.

    >>> str(TrimmedMean(0.25)), TrimmedMean(0.25).least
    ('mean without 0.25 at each end', 4)
    """

    part: Annotated[float, BELOW_HALF] = 0.2
    robust: ClassVar[bool] = True

    @property
    def least(self) -> int:
        return ceil(1 / self.part) if self.part else 1

    def __str__(self) -> str:
        return f"mean without {self.part:.3g} at each end"


@dataclass(frozen=True, slots=True)
class Krum(Answer):
    """The contribution that is closest to the others; with `keep` the mean of the `keep` closest (multi-Krum).

    Rule: the score of contribution i is the sum of ||d_i - d_j||^2 over the n - f - 2 nearest d_j. Those of the lowest score are
    kept; of equal scores the lower worker's. The distance is over all trained parameters together.

    Args:
        f: how many members may lie. A round needs 2 f + 3 members, and keep + f.
        keep: how many are kept.

    Source: Blanchard et al. 2017, "Machine Learning with Adversaries", NeurIPS 2017 (arXiv 1703.02757).

    Raises:
        StrategyError: `f` is no whole number of at least 0, or `keep` none of at least 1.

    >>> str(Krum(f=2)), Krum(f=2).least, Krum(f=1, keep=5).least
    ('Krum, 2 may lie', 7, 6)
    """

    f: Annotated[int, WHOLE] = 1
    keep: Annotated[int, COUNT] = 1
    robust: ClassVar[bool] = True

    @property
    def least(self) -> int:
        return max(2 * self.f + 3, self.keep + self.f)

    def __str__(self) -> str:
        return f"Krum, {self.f} may lie" + (f", mean of {self.keep}" if self.keep > 1 else "")


Combine = Mean | Median | TrimmedMean | Krum
COMBINES: dict[str, Combine] = {"mean": Mean(), "median": Median(), "trimmed_mean": TrimmedMean(), "krum": Krum()}
"""By name, with their usual numbers."""


def combine_of(given: str | Combine) -> Combine:
    """As people write it: a name, or an answer.

    Raises:
        StrategyError: there is none of that name, or it is none.
    """
    if isinstance(given, Mean | Median | TrimmedMean | Krum):
        return given
    if (name := str(given)) not in COMBINES:
        raise StrategyError(unknown_name("combine", name, COMBINES) + "; or ps.TrimmedMean(part), ps.Krum(f, keep)")
    return COMBINES[name]
