"""torch.optim.SGD's step, bit for bit, without its overhead.

`SGD.step` looks for hooks, groups of tensors, devices and graphs. For a few thousand parameters that takes several times
as long as the arithmetic. This is its rule alone, with the same operations in the same order, for flat tensors of float32
or float64 (in half precision the last bit depends on where a kernel's vectors end). It works in pieces, so that a large
model passes through the caches once. The result may be another tensor, so that a pinned version need not be copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from plesio.tensors.operands import CHUNK, pieces

MOMENTUM = "momentum_buffer"
"""SGD's key for its momentum."""


def steps_directly(kind: type[Optimizer], group: dict[str, Any]) -> bool:
    """Whether `sgd_step` does what this optimizer does with a group: it is SGD, without a chosen kernel.

    >>> steps_directly(SGD, SGD([torch.ones(1)], lr=0.1).param_groups[0])
    True
    """
    other = ("maximize", "fused", "foreach", "differentiable")
    return kind is SGD and not any(group.get(name) for name in other)


def sgd_step(
    out: torch.Tensor,
    weight: torch.Tensor,
    slope: torch.Tensor,
    momentum: torch.Tensor | None,
    first: bool,
    group: dict[str, Any],
    rate: float,
) -> None:
    """out = weight - rate * (slope with the settings of `group`); changes `momentum` in place (`first`: starts it).

    >>> weight, momentum = torch.ones(2), torch.empty(2)
    >>> group = {"weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0, "nesterov": False}
    >>> for first in (True, False):
    ...     sgd_step(weight, weight, torch.ones(2), momentum, first, group, rate=0.1)
    >>> weight, momentum
    (tensor([0.7100, 0.7100]), tensor([1.9000, 1.9000]))
    """
    small = out.numel() <= CHUNK
    if small and momentum is None and not group["weight_decay"]:  # as most small exchanges are
        torch.add(weight, slope, alpha=-rate, out=out)
        return
    whole: Sequence[torch.Tensor] = (out, weight, slope) if momentum is None else (out, weight, slope, momentum)
    for new, old, g, *buffer in (whole,) if small else pieces(*whole):
        if group["weight_decay"]:
            g = g.add(old, alpha=group["weight_decay"])
        if buffer:
            (v,) = buffer
            if first:
                v.copy_(g)
            else:
                v.mul_(group["momentum"]).add_(g, alpha=1 - group["dampening"])
            g = g.add(v, alpha=group["momentum"]) if group["nesterov"] else v
        torch.add(old, g, alpha=-rate, out=new)
