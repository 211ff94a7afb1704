"""torch.optim.SGD's step, to the last bit, by the shortest way.

`SGD.step` looks for hooks, groups of tensors, devices and graphs before it adds; at a few thousand parameters that takes
several times as long as adding, and longer yet in a server that slept since the last contribution. This is its rule alone,
with the same operations in the same order, for flat tensors of float32 or float64 (in half precision it matters to the last bit
where a kernel's vectors end); piece by piece, so that a large model passes through the caches once; and with a result that may
lie elsewhere than the weights, so that a version somebody reads need not be copied first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from plesio.tensors.operands import pieces
from plesio.tensors.optimizer_spec import Groups

MOMENTUM = "momentum_buffer"
"""Under this name SGD keeps its momentum."""


def steps_directly(kind: type[Optimizer], groups: Groups) -> bool:
    """Whether an optimizer with these settings does what `sgd_step` does: it is SGD, and no kernel was asked for.

    >>> steps_directly(SGD, SGD([torch.ones(1)], lr=0.1).param_groups)
    True
    """
    other = ("maximize", "fused", "foreach", "differentiable")
    return kind is SGD and not any(group.get(name) for group in groups for name in other)


def sgd_step(
    out: torch.Tensor,
    weight: torch.Tensor,
    slope: torch.Tensor,
    momentum: torch.Tensor | None,
    first: bool,
    group: dict[str, Any],
    rate: float,
) -> None:
    """out = weight - rate * (slope, or what `group` makes of it); `momentum` is changed in place (`first`: begun).

    >>> weight, momentum = torch.ones(2), torch.empty(2)
    >>> group = {"weight_decay": 0.0, "momentum": 0.9, "dampening": 0.0, "nesterov": False}
    >>> for first in (True, False):
    ...     sgd_step(weight, weight, torch.ones(2), momentum, first, group, rate=0.1)
    >>> weight, momentum
    (tensor([0.7100, 0.7100]), tensor([1.9000, 1.9000]))
    """
    whole: Sequence[torch.Tensor] = (out, weight, slope) if momentum is None else (out, weight, slope, momentum)
    for new, old, g, *buffer in pieces(*whole):
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
