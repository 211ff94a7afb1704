"""`torch.nn.SyncBatchNorm` over the workers of a run: the statistics of all their batches of a step. It computes on any device;
torch's own refuses the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Summed = Callable[[torch.Tensor], None]
"""Makes of a tensor its sum over workers."""


@contextmanager
def synchronised(summed: Summed) -> Iterator[None]:
    """Inside, SyncBatchNorm modules in training are `summed` over workers, or over the process group that they were made with."""
    torchs = nn.SyncBatchNorm.forward

    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        return _normalised(self, input, summed) if self.training else torchs(self, input)

    nn.SyncBatchNorm.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.SyncBatchNorm.forward = torchs  # type: ignore[method-assign]


class _Sum(torch.autograd.Function):
    """A sum over workers, whose losses are summed, too."""

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, summed: Summed) -> torch.Tensor:
        ctx.summed, total = summed, mine.clone()
        summed(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        ctx.summed(total)
        return total, None


def _normalised(module: nn.SyncBatchNorm, input: torch.Tensor, summed: Summed) -> torch.Tensor:
    module._check_input_dim(input)
    if (group := module.process_group) is not None:
        summed = lambda total: dist.all_reduce(total, group=group)  # noqa: E731
    x = input.float() if input.dtype in (torch.half, torch.bfloat16) else input
    others, wide = [axis for axis in range(x.dim()) if axis != 1], [1, -1] + [1] * (x.dim() - 2)
    sums: Any = _Sum.apply(torch.cat([x.sum(others), x.new_tensor([x.numel() // x.shape[1]])]), summed)  # type: ignore[no-untyped-call]
    count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
    centred = x - mean.view(wide)
    variance: Any = _Sum.apply(centred.square().sum(others), summed) / count  # type: ignore[no-untyped-call]
    if module.running_mean is not None and module.running_var is not None and module.num_batches_tracked is not None:
        with torch.no_grad():
            module.num_batches_tracked.add_(1)
            part = 1.0 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
            module.running_mean.lerp_(mean.to(module.running_mean.dtype), part)
            module.running_var.lerp_((variance * (count / (count - 1))).to(module.running_var.dtype), part)
    normal: torch.Tensor = centred * torch.rsqrt(variance + module.eps).view(wide)
    if module.affine:
        normal = normal * module.weight.view(wide) + module.bias.view(wide)
    return normal.to(input.dtype)
