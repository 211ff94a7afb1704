"""A step of a worker's own optimizer: SGD's by its rule alone (`plesio.tensors.sgd`), of a large tensor in one pass over memory.

torch's goes over memory three times, and for a small model takes several times as long as the arithmetic. Bits and state are the
same. So large tensors are left to torch where it splits them among threads: vectors end elsewhere then.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.tensors.one_pass import LARGE, Pass, kernels
from plesio.tensors.sgd import MOMENTUM, sgd_step, steps_directly

PAYS = 1 << 26
"""Elements of large tensors to step on before kernels are loaded: a short run does without."""
LINE = 64
"""A kernel takes whole lines of so many elements: torch's vectors end there, too."""
_elements = 0


def take_step(optimizer: Optimizer) -> None:
    """`optimizer.step()`."""
    kind, groups = type(optimizer), optimizer.param_groups
    steps = [(one, optimizer.state, group) for group in groups for one in group["params"] if one.grad is not None]
    direct = all(steps_directly(kind, group) for group in groups) and all(_is_exact(one) for one, *_ in steps)
    if not direct or _is_heard_of(optimizer):
        optimizer.step()
        return
    for one in steps:
        _step(*one)


def _is_heard_of(optimizer: Optimizer) -> bool:
    """Whether somebody but plesio, and a scheduler that counts, has to do with its step."""
    step = optimizer.__dict__.get("step")
    hooks = chain(_global_optimizer_pre_hooks.values(), _global_optimizer_post_hooks.values())
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or not all(str(getattr(one, "__module__", "")).startswith("plesio.worker.") for one in hooks)
        or (step is not None and getattr(step, "__wrapped__", None) is not type(optimizer).step)
    )


def _is_exact(weight: torch.Tensor) -> bool:
    """Whether the bits are torch's."""
    slope = weight.grad
    if slope is None or slope.is_sparse or slope.requires_grad or not weight.is_cpu:
        return False
    if not (weight.dtype == slope.dtype == torch.float32):
        return False
    alone = weight.is_contiguous() and slope.is_contiguous() and torch.get_num_threads() == 1
    return alone or weight.numel() < LARGE


def _step(weight: torch.Tensor, states: Any, group: dict[str, Any]) -> None:
    """The last elements are always torch's, which counts that the tensors were written to."""
    global _elements
    slope, size, rate, end = weight.grad, weight.numel(), float(group["lr"]), 0
    assert slope is not None, "it was asked for"
    tensors, first = [weight.detach(), slope], False
    if group["momentum"]:
        kept = states[weight].get(MOMENTUM)
        first = kept is None
        momentum = torch.empty_like(slope) if kept is None else kept.contiguous() if size >= LARGE else kept
        states[weight][MOMENTUM] = momentum
        tensors.append(momentum)
    if size >= LARGE:
        tensors = [one.view(-1) for one in tensors]
        _elements += size
        same = tensors[-1].dtype == torch.float32  # not a momentum that the user keeps in half precision
        if same and _elements > PAYS and (fast := kernels()) is not None:
            end = (size - 1) // LINE * LINE
            own, g, *v = [one[:end] for one in tensors]
            Pass(fast, 1).sgd(own, own, [g], [1.0], v[0] if v else None, first, group, rate)
    own, g, *v = [one[end:] for one in tensors] if end else tensors
    sgd_step(own, own, g, v[0] if v else None, first, group, rate)
