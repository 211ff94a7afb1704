"""How do gathered contributions move the global parameters?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from plesio.errors import StrategyError


@dataclass(frozen=True, slots=True)
class UserOptimizer:
    """The user's own `torch.optim` optimizer, run at the server on the gathered gradient.

    `lr_scale="share"`: a fold of k of N workers' contributions moves by k/N of the learning rate (at most all of it),
    so that equal samples make equal movement and a rate tuned for `sync_sgd` carries over to every strategy; by
    (k/N)^(3/4) where the optimizer divides by the root of a second moment, as Adam does (`plesio.tensors.outer.scale_for`),
    with which decoupled weight decay is (N/k)^(1/4) times as much at equal samples.
    `"full"`: the learning rate as the user gave it, whatever was folded.
    """

    lr_scale: str = "share"
    averages: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.lr_scale not in ("share", "full"):
            raise StrategyError(f"UserOptimizer(lr_scale={self.lr_scale!r}): lr_scale must be 'share' or 'full'")

    def scale(self, folded: int, workers: int) -> float:
        """What a fold of `folded` contributions multiplies the learning rate by in a run of `workers`."""
        return folded / workers if folded < workers and self.lr_scale == "share" else 1.0

    def __str__(self) -> str:
        return "user's optimizer" + (", lr x k/N" if self.lr_scale == "share" else "")


@dataclass(frozen=True, slots=True)
class Average:
    """The weighted mean of what was sent becomes the new parameters."""

    averages: ClassVar[bool] = True

    def scale(self, folded: int, workers: int) -> float:
        """1: a mean has no rate."""
        return 1.0

    def __str__(self) -> str:
        return "mean"


Outer = UserOptimizer | Average
