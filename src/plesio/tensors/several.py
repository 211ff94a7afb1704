"""Several optimizers, as a GAN's two, seen as one: each steps on its own groups, and only if one of its parameters has a
gradient.

So whatever builds, saves or describes an optimizer need not know that there are more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim import Optimizer

from plesio.errors import ConfigurationError
from plesio.tensors.optimizer_spec import OptimizerSpec

State = defaultdict[torch.Tensor, Any]


class Several(Optimizer):
    """The groups of `optimizers` in order, and the state of all of them.

    Raises:
        ConfigurationError: two of them hold the same parameter.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        held = [id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]]
        if len(set(held)) < len(held):
            raise ConfigurationError(
                f"{len(held) - len(set(held))} parameters are in more than one of the optimizers given to prepare; each "
                "optimizer's step is an exchange of its own parameters: give a parameter to one of them"
            )
        self._state: State = defaultdict(dict)
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        self.param_groups = [group for one in optimizers for group in one.param_groups]  # the same objects
        self.state = defaultdict(dict, [item for one in optimizers for item in one.state.items()])

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        for one in self.optimizers:
            one.state = state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for one in self.optimizers:
            if any(parameter.grad is not None for group in one.param_groups for parameter in group["params"]):
                one.step()


def parts_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The optimizers behind `optimizer`: itself, or several."""
    return optimizer.optimizers if isinstance(optimizer, Several) else (optimizer,)


def specs_of(optimizer: Optimizer, tensors: Sequence[torch.Tensor] | None) -> tuple[OptimizerSpec, ...]:
    """What it takes to build them elsewhere, for a model's `tensors`; None if they stay here. The first has the state of all."""
    parts = parts_of(optimizer)
    if tensors is None:
        return tuple(map(OptimizerSpec.names_of, parts))
    specs = [OptimizerSpec.of(one, tensors) for one in parts]
    return specs[0], *(replace(one, carried=None) for one in specs[1:])
