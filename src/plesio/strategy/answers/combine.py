"""How do the contributions of a fold become one (`Combine`)? Numbers only: the arithmetic is in `plesio.tensors.combining`.

All but the mean are robust: whatever a few members send, the result stays among what the others sent. Members count alike. Each
contribution lies in its worker's slot until the round is folded, so this takes no more memory. `needs`: how many a fold needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

from plesio.strategy.answers.answer import BELOW_HALF, COUNT, WHOLE, Answer


@dataclass(frozen=True, slots=True)
class Mean(Answer):
    """The mean, by weight."""

    needs: ClassVar[int] = 1
    words: ClassVar[str] = "mean"


@dataclass(frozen=True, slots=True)
class Median(Answer):
    """The median of each coordinate; of an even number the mean of the two in the middle. Fewer than half may send anything.

    Source: Yin et al. 2018, arXiv 1803.01498.
    """

    needs: ClassVar[int] = 3
    robust: ClassVar[bool] = True
    words: ClassVar[str] = "median"


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


Combine = Mean | Median | TrimmedMean | Krum
COMBINES: dict[str, Combine] = {"mean": Mean(), "median": Median(), "trimmed_mean": TrimmedMean(), "krum": Krum()}
"""By name, with their usual numbers."""
