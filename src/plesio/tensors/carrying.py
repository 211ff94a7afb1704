"""Initial weights and optimizer state, handed to the server before training begins.

An optimizer that was loaded from a file, or that trained before, has momenta and step counts. If it steps at the server,
the first worker writes them into the ring of versions after the weights, one buffer per key of the state. These buffers
are free until the first version is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import load, save
from torch.optim import Optimizer
from torch.serialization import get_crc32_options, set_crc32_options

from plesio.tensors.arena import Arena

States = dict[torch.Tensor, dict[str, Any]]
"""An optimizer's state by parameter."""
_COUNTS = ("step", "eta", "mu", "mu_product")
"""Keys of which torch's optimizers keep one number per parameter, even if the parameter is a scalar."""


class Kept(NamedTuple):
    """What a checkpoint keeps of a folder: tensors by name, and plain numbers."""

    tensors: dict[str, torch.Tensor]
    numbers: dict[str, Any]


class Part:
    """A part of what a server keeps: numbers, beside arrays that are declared with it (`plesio.memory.register`).

    Attributes:
        is_kept: checkpoints have it; else it is computed again.
        like: it goes on as it is where the strategy has the same answer to this question ("": wherever there is one).
    """

    is_kept = True
    like: str | None = None

    def numbers(self) -> Any:
        """What effects change beside arrays, as plain values."""

    def take(self, numbers: Any) -> None:
        """Go on from these numbers, with arrays as they are."""

    def kept(self) -> Kept:
        """What a checkpoint keeps beside arrays."""
        return Kept({}, self.numbers() or {})

    def restore(self, numbers: Any) -> None:
        """Go on from the numbers of `kept`; the tensors that `kept` then names are to be filled."""
        if numbers:
            self.take(numbers)


class TensorState(msgspec.Struct, frozen=True):
    """Optimizer state of one parameter: keys of tensors of its shape and dtype, and all other values."""

    whole: tuple[str, ...]
    rest: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any], parameter: torch.Tensor) -> TensorState:
        whole = [key for key, value in state.items() if is_whole(key, value, parameter)]
        return cls(tuple(whole), {key: value for key, value in state.items() if key not in whole})

    def packed(self) -> TensorState:
        """With its small tensors as bytes."""
        return TensorState(self.whole, {key: _packed(value) for key, value in self.rest.items()})

    def same(self, other: TensorState) -> bool:
        """Whether their parameters could be stepped as one tensor."""
        return set(self.whole) == set(other.whole) and self.rest == other.rest

    def __str__(self) -> str:
        numbers = [f"{key}={from_plain(value):g}" for key, value in self.rest.items() if value is not None]
        return ", ".join([*self.whole, *numbers]) or "nothing"


class Carried(msgspec.Struct, frozen=True):
    """The state of an optimizer that has stepped, for each tensor of the model; its small tensors are bytes."""

    held: tuple[TensorState, ...]

    @classmethod
    def by(cls, optimizer: Optimizer, tensors: Sequence[torch.Tensor]) -> Carried | None:
        """What `optimizer` holds for a model's `tensors`; None if it has not stepped yet."""
        if not any(map(_has_stepped, optimizer.state.values())):
            return None
        return cls(tuple(TensorState.of(optimizer.state.get(tensor, {}), tensor).packed() for tensor in tensors))

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the tensors handed over after the weights, in their order."""
        return tuple(sorted({key for held in self.held for key in held.whole}))


def _whole(index: int, there: torch.Tensor, tensor: torch.Tensor) -> None:
    there.copy_(tensor.detach())


def hand_over(
    optimizer: Optimizer,
    carried: Carried | None,
    tensors: Sequence[torch.Tensor],
    ring: Sequence[Arena],
    first: bool,
    bring: Callable[[int, torch.Tensor, torch.Tensor], None] = _whole,
) -> None:
    """The first worker writes what the server begins with. Every worker's optimizer loses its state, which lives there now.
    `bring` copies to a tensor of the ring what is like the model's tensor of that number."""
    if first:
        for index, (tensor, view) in enumerate(zip(tensors, ring[0].views, strict=True)):
            bring(index, view, tensor)
    if carried is None:
        return
    for key, arena in zip(carried.keys if first else (), ring[1:], strict=False):
        for index, (tensor, view, held) in enumerate(zip(tensors, arena.views, carried.held, strict=True)):
            if key in held.whole:
                bring(index, view, optimizer.state[tensor][key])
    optimizer.state.clear()


def _all_of_it(index: int, there: torch.Tensor) -> torch.Tensor:
    return there.clone()


def brought_back(
    carried: Carried,
    tensors: Sequence[torch.Tensor],
    arenas: Sequence[Arena],
    take: Callable[[int, torch.Tensor], torch.Tensor] = _all_of_it,
) -> States:
    """The state of each tensor that has some, as its optimizer would hold it; `arenas` hold what the keys name, and `take` copies
    from there what is like the model's tensor of that number."""
    states: States = {}
    for place, (tensor, held) in enumerate(zip(tensors, carried.held, strict=True)):
        state = {key: from_plain(value) for key, value in held.rest.items()}
        state |= {
            key: take(place, arena.views[place])
            for key, arena in zip(carried.keys, arenas, strict=True)
            if key in held.whole
        }
        if state:
            states[tensor] = state
    return states


@contextmanager
def unchecked() -> Iterator[None]:
    """Save without torch's checksums, which take half the time: a checkpoint has its own."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _has_stepped(state: dict[str, Any]) -> bool:
    """Whether the optimizer has stepped; some (Adagrad) allocate state before their first step."""
    return bool(state["step"] > 0) if "step" in state else any(torch.is_tensor(value) for value in state.values())


def is_whole(key: str, value: Any, parameter: torch.Tensor) -> bool:
    """Whether a value of an optimizer's state has its parameter's shape and dtype."""
    if key in _COUNTS or not torch.is_tensor(value):
        return False
    return value.shape == parameter.shape and value.dtype == parameter.dtype


def _packed(value: Any) -> Any:
    return {"tensor": save({"": value.detach().contiguous()})} if isinstance(value, torch.Tensor) else value


def is_small(value: Any) -> bool:
    """Whether a value that is not whole is a tensor, and no single number."""
    return torch.is_tensor(value) and value.dim() > 0


def plain(value: Any) -> Any:
    """A small value of an optimizer's state for a file; of a tensor with dimensions, its shape and dtype."""
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    return {"value": value.item(), "dtype": dtype} if value.dim() == 0 else {"shape": list(value.shape), "dtype": dtype}


def from_plain(value: Any) -> Any:
    """The inverse of `plain`, where a tensor with dimensions is returned as zeros, to be filled; and of `_packed`."""
    match value:
        case {"tensor": bytes(data)}:
            return load(data)[""]
        case {"shape": shape, "dtype": dtype}:
            return torch.zeros(shape, dtype=getattr(torch, dtype))
        case {"value": number, "dtype": dtype}:
            return torch.tensor(number, dtype=getattr(torch, dtype))
    return value
