"""Whether anything was made of a batch."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import torch
from torch.optim import Optimizer

from plesio.worker.state import WorkerState


def trained_since(state: WorkerState, optimizer: Optimizer, steps_only: bool = False) -> Callable[[], bool]:
    """The result tells whether a step or, unless `steps_only`, a backward pass came since this call."""
    parameters: list[torch.Tensor] = [one for group in optimizer.param_groups for one in group["params"]]
    before = [None if one.grad is None else (ref(one.grad), one.grad._version) for one in parameters]
    step = state.concluded()
    if steps_only:
        return lambda: state.concluded() != step

    def left_a_gradient(parameter: torch.Tensor, then: tuple[ref[torch.Tensor], int] | None) -> bool:
        now = parameter.grad
        return now is not None and (then is None or then[0]() is not now or then[1] != now._version)

    return lambda: state.concluded() != step or any(map(left_a_gradient, parameters, before))
