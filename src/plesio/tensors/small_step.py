"""SGD's step of a worker's own over small tensors, by its rule alone (`plesio.tensors.sgd`): bits and state are torch's.

What torch does around it takes several times as long as the arithmetic of a few thousand parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.tensors.operands import CHUNK
from plesio.tensors.sgd import MOMENTUM, sgd_step, steps_directly


def takes_small_step(optimizer: Optimizer) -> bool:
    """Step, if that is all that `optimizer.step()` would do; whether it was."""
    if _is_heard_of(optimizer):
        return False
    groups = optimizer.param_groups
    if not all(steps_directly(type(optimizer), group) for group in groups):
        return False
    steps = [(one, one.grad, group) for group in groups for one in group["params"] if one.grad is not None]
    if not all(_is_plain(weight, slope) for weight, slope, _ in steps):
        return False
    for weight, slope, group in steps:
        _step(weight.detach(), slope, optimizer.state[weight] if group["momentum"] else None, group)
    return True


def _is_heard_of(optimizer: Optimizer) -> bool:
    """Whether somebody but a scheduler, which counts, and plesio have to do with its step."""
    step = optimizer.__dict__.get("step")
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or (step is not None and getattr(step, "__wrapped__", None) is not type(optimizer).step)
        or any(not one.__module__.startswith("plesio.worker.") for one in hooks)
    )


def _is_plain(weight: torch.Tensor, slope: torch.Tensor) -> bool:
    kind = weight.dtype == slope.dtype == torch.float32 and weight.is_cpu
    return kind and weight.numel() <= CHUNK and not (slope.is_sparse or slope.requires_grad)


def _step(weight: torch.Tensor, slope: torch.Tensor, state: Any, group: dict[str, Any]) -> None:
    momentum, first = None, False
    if state is not None:
        momentum = state.get(MOMENTUM)
        if first := momentum is None:
            momentum = state[MOMENTUM] = torch.empty_like(slope)
    sgd_step(weight, weight, slope, momentum, first, group, float(group["lr"]))
