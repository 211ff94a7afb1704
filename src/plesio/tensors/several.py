"""Several optimizers, as a GAN's two, seen as one: each steps on its own groups, and only if one of its parameters has a
gradient.

So whatever builds, saves or describes an optimizer need not know that there are more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim import Optimizer

from plesio.errors import ConfigurationError
from plesio.tensors.carrying import Carried
from plesio.tensors.optimizer_spec import OptimizerSpec


class _States(MutableMapping[Any, Any]):
    """The state of several optimizers by parameter; each keeps its own, so that one may clear it. What is of no parameter is the
    first one's."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._owners: dict[int, tuple[Any, Optimizer]] = {}  # with the parameter, whose identity no other gets so

    def _of(self, key: Any) -> Any:
        """The state that `key` belongs in."""
        if id(key) not in self._owners:  # parameters may be others than before
            self._owners = {
                id(one): (one, part)
                for part in self._optimizers
                for group in part.param_groups
                for one in group["params"]
            }
        _, owner = self._owners.get(id(key), (None, self._optimizers[0]))
        return owner.state

    def __getitem__(self, key: Any) -> Any:
        return self._of(key)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._of(key)[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._of(key)[key]

    def __contains__(self, key: object) -> bool:
        return key in self._of(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As a defaultdict's: it makes no entry."""
        return self._of(key).get(key, default)

    def __iter__(self) -> Iterator[Any]:
        return (key for one in self._optimizers for key in list(one.state))

    def __len__(self) -> int:
        return sum(len(one.state) for one in self._optimizers)


class Several(Optimizer):
    """The groups of `optimizers` in order, and the state of all of them, as they are at the time.

    Raises:
        ConfigurationError: two of them hold the same parameter.

    >>> first, second = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], momentum=0.9) for _ in range(2))
    >>> for one in (first, second):
    ...     one.state[one.param_groups[0]["params"][0]]["momentum_buffer"] = torch.ones(1)
    >>> both = Several([first, second])
    >>> first.state.clear()
    >>> len(both.state), len(second.state)
    (1, 1)
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.optimizers = tuple(optimizers)
        held = [id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]]
        if len(set(held)) < len(held):
            raise ConfigurationError(
                f"{len(held) - len(set(held))} parameters are in more than one of the optimizers given to prepare; each "
                "optimizer's step is an exchange of its own parameters: give a parameter to one of them"
            )
        self._states = _States(self.optimizers)
        self._own_groups: list[dict[str, Any]] | None = []  # torch's, while it builds this one
        super().__init__(self._groups(), {})
        self._own_groups = None

    def _groups(self) -> list[dict[str, Any]]:
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._groups() if self._own_groups is None else self._own_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self._own_groups = groups

    @property
    def state(self) -> Any:
        return self._states

    @state.setter
    def state(self, state: Mapping[Any, Any]) -> None:
        if self._own_groups is None:  # else torch begins with an empty one
            for one in self.optimizers:
                one.state = defaultdict(dict)
            self._states.update(state)

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
    states = [Carried.by(optimizer, tensors), *[None] * (len(parts) - 1)]
    return tuple(replace(one, carried=carried) for one, carried in zip(specs, states, strict=True))
