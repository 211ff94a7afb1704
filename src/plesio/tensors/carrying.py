"""What goes to the server before training begins: the first worker's weights, and the state its optimizer already holds.

An optimizer that was loaded from a file, or that trained before, has momenta and step counts. If it is to step at the server,
the worker writes them into the ring of versions, behind the weights: one buffer for each key of the state. These buffers are
free until the first version is published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer

from plesio.tensors.arena import Arena

_COUNTS = ("step", "eta", "mu", "mu_product")
"""What torch's optimizers keep one number of for each parameter: of the size of a parameter that is one number, too."""


class Held(msgspec.Struct, frozen=True):
    """What an optimizer keeps for one parameter: the keys of tensors of its shape and dtype, and the rest as it is."""

    whole: tuple[str, ...]
    rest: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any], parameter: torch.Tensor) -> Held:
        whole = [key for key, value in state.items() if is_whole(key, value, parameter)]
        return cls(tuple(whole), {key: value for key, value in state.items() if key not in whole})

    def same(self, other: Held) -> bool:
        """Whether both are of tensors that could be one."""
        return set(self.whole) == set(other.whole) and str(self.rest) == str(other.rest)

    def __str__(self) -> str:
        numbers = [f"{key}={value:g}" for key, value in self.rest.items() if value is not None]
        return ", ".join([*self.whole, *numbers]) or "nothing"


class Carried(msgspec.Struct, frozen=True):
    """The state of an optimizer that has stepped: for each tensor of the model what it holds, if it holds any."""

    held: tuple[Held, ...]

    @classmethod
    def by(cls, optimizer: Optimizer, tensors: Sequence[torch.Tensor]) -> Carried | None:
        """What `optimizer` holds for a model's `tensors`; None if it has not stepped yet."""
        if not any(map(_has_stepped, optimizer.state.values())):
            return None
        return cls(tuple(Held.of(optimizer.state.get(tensor, {}), tensor) for tensor in tensors))

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the tensors that go beside the weights, in the order in which they lie there."""
        return tuple(sorted({key for held in self.held for key in held.whole}))


def hand_over(
    optimizer: Optimizer, carried: Carried | None, tensors: Sequence[torch.Tensor], ring: Sequence[Arena], first: bool
) -> None:
    """The first worker puts its model's tensors into the ring's first buffer, its optimizer's state into those that follow.

    State that is carried lives at the server from here on, whoever's it was.
    """
    if first:
        for tensor, view in zip(tensors, ring[0].views, strict=True):
            view.copy_(tensor.detach())
    if carried is None:
        return
    for key, arena in zip(carried.keys if first else (), ring[1:], strict=False):
        for tensor, view, held in zip(tensors, arena.views, carried.held, strict=True):
            if key in held.whole:
                view.copy_(optimizer.state[tensor][key])
    optimizer.state.clear()


def _has_stepped(state: dict[str, Any]) -> bool:
    """Whether this is more than what some optimizers (Adagrad) lay out before their first step."""
    return bool(state["step"] > 0) if "step" in state else any(torch.is_tensor(value) for value in state.values())


def is_whole(key: str, value: Any, parameter: torch.Tensor) -> bool:
    """Whether a value of an optimizer's state is as large as its parameter, and of its type."""
    if key in _COUNTS or not torch.is_tensor(value):
        return False
    return value.shape == parameter.shape and value.dtype == parameter.dtype


def plain(value: Any) -> Any:
    """A value of an optimizer's state for a file, where it is no large tensor; of a small one shape and dtype."""
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    return {"value": value.item(), "dtype": dtype} if value.dim() == 0 else {"shape": list(value.shape), "dtype": dtype}


def from_plain(value: Any) -> Any:
    """The other way; a small tensor is to be filled."""
    if not isinstance(value, dict):
        return value
    dtype = getattr(torch, value["dtype"])
    return torch.zeros(value["shape"], dtype=dtype) if "shape" in value else torch.tensor(value["value"], dtype=dtype)
