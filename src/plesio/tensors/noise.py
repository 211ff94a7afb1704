"""The noise of differentially private rounds."""

from __future__ import annotations

import os

import torch

from plesio.strategy.answers import Privacy
from plesio.tensors.arena import Arena, Kind


class Noise:
    """Makes of a round's mean contribution the sum, with noise. Its seed is drawn from the operating system each time, and kept
    nowhere: who knew it could take the noise off."""

    def __init__(self, privacy: Privacy) -> None:
        self._deviation = privacy.noise * privacy.clip / privacy.per_round

    def add(self, mean: Arena, count: int) -> None:
        """`mean` is that of `count` workers' contributions, each a sum over its clients, divided by `per_round`."""
        source = torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))
        for view in mean.of_kind(Kind.TRAINED):
            noise = torch.empty(view.shape, dtype=torch.float32).normal_(0.0, self._deviation, generator=source)
            view.mul_(count).add_(noise)
