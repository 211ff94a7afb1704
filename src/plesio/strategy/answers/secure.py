"""Sums over sites that nobody can look into: part of what they send (`Delta`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import COUNT, POSITIVE, Allowed, Answer


@dataclass(frozen=True, slots=True)
class SecureSums(Answer):
    """The head learns the sum of what a round's sites send, and of no site what it sent.

    Rule: a version moves by sum_k (n_k / n) clip(d_k) over the sites whose numbers came. d_k is how far site k moved each
    parameter, cut off at `clip` up and down. Sites send it in fixed point, in units of 2^-30 `clip`, with masks that cancel in
    the sum. Any `threshold` sites of a round can take off the masks of those that dropped out. A round with fewer comes to
    nothing, and nothing of it is known.

    It holds against a head that follows the protocol and looks at all that comes, even together with threshold - 1 sites: they
    learn the sum of the others. Who took part, and with how many samples, is not hidden.

    Args:
        threshold: how many sites with samples a round takes: at least 2, and more than half of all.
        clip: how far a parameter may move in a round, in its own unit; what is beyond is cut off.

    Source: Bonawitz et al. 2017, CCS, doi 10.1145/3133956.3133982.

    Raises:
        StrategyError: `threshold` is no whole number of at least 2, or `clip` no number above 0.

    >>> print(SecureSums(threshold=5, clip=0.1))
    5 or more, clip 0.1
    """

    threshold: Annotated[int, COUNT]
    clip: Annotated[float, POSITIVE]

    def __post_init__(self) -> None:
        Answer.__post_init__(self)
        if self.threshold < 2:
            raise StrategyError("SecureSums(threshold=1): the sum of one site is what it sent; give at least 2")

    def check_sites(self, sites: int) -> str:
        """Why so many sites can have no round; nothing if they can. With a threshold of half of them, a head that lies could ask
        one half for one secret of a site, and the other half for the other."""
        least = max(3, self.threshold)
        if sites < least:
            return f"{sites} sites, and a round takes {least}"
        if 2 * self.threshold <= sites:
            return f"{sites} sites, and threshold={self.threshold} is not more than half of them"
        return ""

    def check_samples(self, samples: Sequence[int]) -> str:
        """Why the sum of sites with so many samples tells too much: too few have any, and the others add nothing."""
        adding = sum(one > 0 for one in samples)
        if 0 < adding < self.threshold:
            return f"{adding} of {len(samples)} sites have samples, and it takes {self.threshold}"
        return ""

    def __str__(self) -> str:
        return f"{self.threshold} or more, clip {self.clip:g}"


SECURE_OR_NONE = Allowed("ps.SecureSums(...), or None", lambda value: value is None or isinstance(value, SecureSums))
