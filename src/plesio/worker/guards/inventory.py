"""Whether a model still holds the tensors it was prepared with: none new, none gone, none replaced.

It is asked at each step, so it is answered from a flat list of what the modules hold. Only if that list changed are the
tensors themselves looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import methodcaller

import torch
from torch import nn

from plesio.errors import ModelMismatchError

FILLED = (
    "; a buffer that the first forward pass fills is there once a batch went through the model before prepare, and one that is "
    "only a cache can have persistent=False"
)
UNUSED = "; what is no longer used can stay there without being called"
_VALUES = methodcaller("values")


class Inventory:
    """What a model holds when it is prepared.

    What its state_dict holds counts, under whatever name: a cache that a forward pass adds (a buffer with persistent=False)
    is none of it, and a layer that was wrapped (compiled, checkpointed) holds the same tensors.

    Args:
        model: as it is prepared.
        tensors: its parameters and buffers.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> inventory = Inventory(model, [*model.parameters()])
    >>> inventory.check()
    >>> _ = model.append(nn.Linear(2, 2))
    >>> inventory.check()
    Traceback (most recent call last):
    plesio.errors.ModelMismatchError: 1.weight was not in the model when it was prepared: ...
    """

    def __init__(self, model: nn.Module, tensors: Sequence[torch.Tensor]) -> None:
        self._model = model
        known = set(map(id, tensors))
        state = self._state()
        self._names = {id(value): name for name, value in state.items() if id(value) in known}
        self._take_stock()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether the model's state_dict held it."""
        return id(tensor) in self._names

    def check(self) -> None:
        """Compare.

        Raises:
            ModelMismatchError: with the first tensor that is new, gone or replaced.
        """
        if self._stock() != self._then:
            self._compare()
            self._take_stock()

    def _state(self) -> dict[str, torch.Tensor]:
        state = self._model.state_dict(keep_vars=True)
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}

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
        state = self._state()
        held = set(
            map(id, chain(self._model.parameters(), self._model.buffers()))
        )  # others are made for the state_dict
        for name, value in state.items():
            if id(value) in held and id(value) not in self._names:
                was = "another tensor" if name in self._names.values() else "not in the model"
                self._refuse(
                    f"{name} was {was} when it was prepared", "" if isinstance(value, nn.Parameter) else FILLED
                )
        there = set(map(id, state.values()))
        for identity, name in self._names.items():
            if identity not in there:
                self._refuse(f"{name} is no longer in the model, and was when it was prepared", UNUSED)

    def _refuse(self, what: str, way: str) -> None:
        raise ModelMismatchError(
            f"{what}: the workers exchange, and the run's result holds, the tensors that prepare was given; add, replace, "
            f"remove, prune and parametrise layers before prepare{way}"
        )
