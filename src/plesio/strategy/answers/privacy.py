"""Differential privacy for clients and sites: part of what they send (`Delta`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from plesio.strategy.answers.answer import BELOW_1, COUNT_OR_NONE, POSITIVE, POSITIVE_OR_NONE, Answer


@dataclass(frozen=True, slots=True)
class Privacy(Answer):
    """What a release says of any one client, or site, is bounded (epsilon, delta), by the Gaussian mechanism over them.

    Rule: each client's delta d_k is scaled to an L2 norm of `clip` at most, over the whole model; a version moves by
    (sum_k d_k + N(0, (noise clip)^2)) / per_round. Each client takes part in a round with the same chance, on its own.

    Of sites with secure sums, each of n that came adds N(0, (noise clip)^2 / threshold) to its own d_k, n >= threshold; a version
    moves by the mean. Each site is in each round.

    Args:
        clip: the norm that one client's delta may have.
        noise: the standard deviation of the noise, in clips.
        delta: the chance that the bound does not hold; well below 1 / the number of clients.
        per_round: how many clients are expected in a round, as `plesio.Clients` says; None: for sites.
        epsilon: the run ends before more than this is spent; None: it is only told.

    Source: McMahan et al. 2018, arXiv 1710.06963; for sites Kairouz et al. 2021, arXiv 2102.06387.

    Raises:
        StrategyError: a number outside of what it means.

    >>> print(Privacy(clip=1.0, noise=1.1, delta=1e-5, per_round=10))
    clip 1, noise 1.1, delta 1e-05
    """

    clip: Annotated[float, POSITIVE]
    noise: Annotated[float, POSITIVE]
    delta: Annotated[float, BELOW_1]
    per_round: Annotated[int | None, COUNT_OR_NONE] = None
    epsilon: Annotated[float | None, POSITIVE_OR_NONE] = None

    def __str__(self) -> str:
        most = "" if self.epsilon is None else f", epsilon {self.epsilon:g} at most"
        return f"clip {self.clip:g}, noise {self.noise:g}, delta {self.delta:g}{most}"
