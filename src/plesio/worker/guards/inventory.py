"""At each step: the model holds the tensors it was prepared with, each in its memory; none new, gone, replaced or moved.

`Inventory` looks for new, missing and replaced tensors; the replica looks where they lie, and refuses by `refuse_changed`.
The check compares a flat list of what the modules hold. Only if that list changed does it look at the tensors themselves.
"""

from __future__ import annotations

from itertools import chain
from operator import methodcaller
from typing import NoReturn

import torch
from torch import nn

from plesio.errors import ModelMismatchError
from plesio.tensors.arena import TensorSpec

_VALUES = methodcaller("values")


class Inventory:
    """The tensors of a model's state_dict at the time of prepare, under whatever name. A cache that a forward pass adds (a
    buffer with persistent=False) does not count, and a layer that was wrapped (compiled, checkpointed) holds the same
    tensors."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = {id(tensor): name for name, tensor in self._tensors().items()}
        self._take_stock()

    def check(self) -> None:
        """Refuse the first tensor that is new, gone or replaced."""
        if self._stock() != self._then:
            self._compare()
            self._take_stock()

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The model's own tensors in its state_dict, without those that are made for it."""
        held = set(map(id, chain(self._model.parameters(), self._model.buffers())))
        return {name: one for name, one in self._model.state_dict(keep_vars=True).items() if id(one) in held}

    def _take_stock(self) -> None:
        self._modules = list(self._model.modules())  # kept, so that no other gets the identity of one
        self._fixed = [home for one in self._modules for home in (one._modules, one._parameters)]
        self._buffers = [one._buffers for one in self._modules]
        self._empty = [(home, name) for home in self._buffers for name, value in home.items() if value is None]
        self._then = self._stock()

    def _stock(self) -> tuple[list[int], list[int], list[bool]]:
        """Which modules and parameters there are, how many buffers, and which of the empty ones were filled."""
        fixed = list(map(id, chain.from_iterable(map(_VALUES, self._fixed))))
        return fixed, list(map(len, self._buffers)), [home.get(name) is not None for home, name in self._empty]

    def _compare(self) -> None:
        now = self._tensors()
        new = [name for name, tensor in now.items() if id(tensor) not in self._names]
        there = set(map(id, now.values()))
        gone = [name for identity, name in self._names.items() if identity not in there]
        if new:
            was = "another tensor" if new[0] in self._names.values() else "not in the model"
            _refuse(f"{new[0]} was {was} when it was prepared")
        if gone:
            _refuse(f"{gone[0]} is no longer in the model, and was when it was prepared")


def _refuse(what: str) -> None:
    raise ModelMismatchError(
        f"{what}: the workers exchange, and the run's result holds, the tensors that prepare was given; add, replace, "
        "remove, prune and parametrise layers before prepare. A buffer that the first forward pass fills is there once a batch "
        "went through the model before; one that is only a cache can have persistent=False; what is no longer used can stay"
    )


def refuse_changed(spec: TensorSpec, tensor: torch.Tensor) -> NoReturn:
    """`tensor` is no longer where the replica put it, or of another shape or dtype."""
    if tensor.shape != spec.shape or tensor.dtype != spec.torch_dtype:
        raise ModelMismatchError(
            f"{spec.name} changed after prepare: it was {spec.dtype} {tuple(spec.shape)}, "
            f"now it is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}; "
            "change shapes, dtypes and devices before prepare"
        )
    raise ModelMismatchError(
        f"{spec.name} was given other memory after prepare (by .data =, .to() or the like); "
        "write into it in place, or change it before prepare"
    )
