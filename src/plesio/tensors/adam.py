"""The steps of torch.optim.Adam, AdamW and NAdam, bit for bit, without their overhead; see `plesio.tensors.sgd`.

In a large model roots are rounded exactly, as compiled kernels round them. torch's are off in the last bit here and there, in a
way that differs from processor to processor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim import Adam, AdamW, NAdam, Optimizer

from plesio.tensors.operands import pieces

MEAN, SQUARE, LARGEST = "exp_avg", "exp_avg_sq", "max_exp_avg_sq"
"""Adam's keys for its moments."""
OTHER = ("maximize", "fused", "foreach", "differentiable", "capturable")


def steps_directly(kind: type[Optimizer], group: dict[str, Any]) -> bool:
    """Whether `adam_step` does what this optimizer does with a group.

    >>> steps_directly(AdamW, AdamW([torch.ones(1)]).param_groups[0])
    True
    """
    return kind in (Adam, AdamW, NAdam) and not any(group.get(name) for name in OTHER)


def keys(group: dict[str, Any]) -> tuple[str, ...]:
    """The tensors of its state that are of the parameter's size."""
    return (MEAN, SQUARE, LARGEST) if group.get("amsgrad") else (MEAN, SQUARE)


def begin(kind: type[Optimizer], state: dict[str, Any]) -> None:
    """The numbers of a state before the first step."""
    state["step"] = torch.tensor(0.0)
    if kind is NAdam:
        state["mu_product"] = torch.tensor(1.0)


def decouples(group: dict[str, Any]) -> bool:
    """Whether weights decay by themselves, not through the gradient."""
    return bool(group.get("decoupled_weight_decay"))


class Numbers(NamedTuple):
    """What one step multiplies by, and adds."""

    decay: float
    shrink: float
    lerp: float
    square: float
    fresh: float
    root: float
    eps: float
    step: float
    nesterov: float
    exact: bool


def count(state: dict[str, Any], group: dict[str, Any]) -> None:
    """One step more."""
    state["step"] += 1
    if "mu_product" in state:
        state["mu_product"] *= _nadam_momentum(group, float(state["step"]))


def _nadam_momentum(group: dict[str, Any], step: float) -> float:
    return float(group["betas"][0] * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"])))


def numbers_of(
    state: dict[str, Any], group: dict[str, Any], rate: float, decaying: float, exact: bool = False
) -> Numbers:
    """Those of the step that was counted last. Weights that decay by themselves do so at the rate `decaying`; `exact`: how roots
    are rounded."""
    steps = float(state["step"])
    b1, b2 = group["betas"]
    alone, decay = decouples(group), group["weight_decay"]
    left = 1 - b2**steps
    root, step, nesterov = left**0.5, -rate / (1 - b1**steps), 0.0
    if "mu_product" in state:
        now, then, product = (
            _nadam_momentum(group, steps),
            _nadam_momentum(group, steps + 1),
            float(state["mu_product"]),
        )
        root, step, nesterov = left, -rate * then / (1.0 - product * then), -rate * (1.0 - now) / (1.0 - product)
    shrink = 1 - decaying * decay if alone else 1.0
    return Numbers(0.0 if alone else decay, shrink, 1 - b1, b2, 1 - b2, root, group["eps"], step, nesterov, exact)


def adam_step(out: torch.Tensor, weight: torch.Tensor, slope: torch.Tensor, state: dict[str, Any], by: Numbers) -> None:
    """out = weight after a step with `slope`; changes the moments in `state` in place.

    >>> weight, state = torch.ones(1), {"exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)}
    >>> group = Adam([weight], lr=0.5, eps=0.0).param_groups[0]
    >>> begin(Adam, state); count(state, group)
    >>> adam_step(weight, weight, torch.full((1,), 4.0), state, numbers_of(state, group, 0.5, 0.5)); weight
    tensor([0.5000])
    """
    largest = [state[LARGEST]] if LARGEST in state else []
    for new, old, g, mean, square, *most in pieces(out, weight, slope, state[MEAN], state[SQUARE], *largest):
        if by.decay:
            g = g.add(old, alpha=by.decay)
        mean.lerp_(g, by.lerp)
        square.mul_(by.square).addcmul_(g, g, value=by.fresh)
        for one in most:
            square = torch.maximum(one, square, out=one)
        root = root_of(square, by)
        if by.shrink != 1:
            torch.mul(old, by.shrink, out=new)
        elif new.data_ptr() != old.data_ptr():
            new.copy_(old)
        if by.nesterov:
            new.addcdiv_(g, root, value=by.nesterov)
        new.addcdiv_(mean, root, value=by.step)


def root_of(square: torch.Tensor, by: Numbers) -> torch.Tensor:
    """What the step is divided by."""
    if by.exact and square.dtype == torch.float32:  # as kernels, which know no other type
        numbers, factor = square.numpy(), np.float32(1.0 / by.root)
        root = torch.from_numpy(np.sqrt(numbers * factor) if by.nesterov else np.sqrt(numbers) * factor)
    else:
        root = (square / by.root).sqrt_() if by.nesterov else square.sqrt().div_(by.root)
    return root.add_(by.eps)
