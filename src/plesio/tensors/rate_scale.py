"""By how much of a strategy's learning rate an optimizer steps, by what it does with a gradient's noise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import optim
from torch.optim import Optimizer

from plesio.tensors.arena import REMEMBERED_MAX

NORMALISING: tuple[type[Optimizer], ...] = (
    optim.Adam, optim.AdamW, optim.SparseAdam, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Adagrad,
    optim.Adadelta,
)  # fmt: skip
"""Optimizers that divide by the root of a second moment: the noisier a gradient, the shorter their step."""


def scale_for(kind: type[Optimizer], scale: float, share: float) -> float:
    """The factor of the learning rate, where the strategy says `scale`, of which `share` is k/N.

    The mean of k of N workers' gradients has N/k times the noise variance of all of them. An optimizer that divides by
    the root of a second moment then shortens its step by itself: by nothing if gradients are mostly signal, by the root
    of k/N if they are mostly noise (Malladi et al. 2022, arXiv 2205.10287). What remains is k/N in the one case and its
    root in the other; we take their geometric mean, (k/N)^(3/4). docs/decisions/0006.

    >>> scale_for(optim.SGD, 0.0625, 0.0625), scale_for(optim.Adam, 0.0625, 0.0625)
    (0.0625, 0.125)
    """
    return scale / share**0.25 if issubclass(kind, NORMALISING) else scale


class Scales(dict[tuple[float, float], list[float]]):
    """By scale and share, these factors for each of several optimizers.

    >>> Scales([optim.SGD, optim.Adam])[0.0625, 0.0625]
    [0.0625, 0.125]
    """

    def __init__(self, kinds: Sequence[type[Optimizer]]) -> None:
        super().__init__()
        self._kinds = kinds

    def __missing__(self, of: tuple[float, float]) -> list[float]:
        if len(self) > REMEMBERED_MAX:
            self.clear()
        scales = self[of] = [scale_for(kind, *of) for kind in self._kinds]
        return scales
