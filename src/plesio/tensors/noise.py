"""The noise of differentially private rounds."""

from __future__ import annotations

import numpy as np
import torch

from plesio.strategy.answers import Privacy
from plesio.tensors.arena import Arena, Kind


def gaussian(count: int) -> torch.Tensor:
    """So many standard normal numbers. NumPy draws the seed, 128 bits, from the operating system each time and keeps it nowhere:
    who knew it could take the noise off. (torch would use 32 bits of a seed, few enough to try them all.)"""
    return torch.from_numpy(np.random.default_rng().standard_normal(count, dtype=np.float32))


class Noise:
    """Makes of a round's mean contribution the sum, with noise."""

    def __init__(self, privacy: Privacy) -> None:
        assert privacy.per_round is not None, "it is for clients"
        self._deviation = privacy.noise * privacy.clip / privacy.per_round

    def add(self, mean: Arena, count: int) -> None:
        """`mean` is that of `count` workers' contributions, each a sum over its clients, divided by `per_round`."""
        for view in mean.of_kind(Kind.TRAINED):
            view.mul_(count).add_(gaussian(view.numel()).view(view.shape), alpha=self._deviation)
