"""What a worker did while its answer travelled, on top of the version that it was answered with."""

from __future__ import annotations

import torch

PIECE = 1 << 17
"""Elements that all operations are done on before the next ones: they stay in the cache."""


def rebase(now: torch.Tensor, base: torch.Tensor, version: torch.Tensor, alpha: float = 1.0) -> None:
    """now += the way from `base` to the version, or `alpha` of it; `base` is where that leads. Both are on the CPU.

    >>> now, base = torch.tensor([3.0]), torch.tensor([2.0])
    >>> rebase(now, base, torch.tensor([10.0])); now, base
    (tensor([11.]), tensor([10.]))
    """
    if alpha != 1.0:
        version = torch.lerp(base, version, alpha)
    if not now.is_cpu:
        now.add_((version - base).to(now.device))
        base.copy_(version)
        return
    for moved, start, new in zip(*(torch.split(one, PIECE) for one in (now, base, version)), strict=True):
        moved.sub_(start).add_(new)
        start.copy_(new)
