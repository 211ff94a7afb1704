"""A user's optimizer in plain data, as it is sent: the name of its class, numbers, text, and bytes of small tensors.

The class travels by its name. The receiver imports it, or has it already: what a script defines comes to a server on the
same host with the training function.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec
import torch
from safetensors.torch import load, save
from torch.optim import Optimizer

from plesio.errors import ConfigurationError
from plesio.tensors.carrying import Carried, Held
from plesio.tensors.optimizer_spec import SCHEDULED, STAY, Groups, OptimizerSpec, check_sendable, named


class OptimizerData(msgspec.Struct, frozen=True):
    """An optimizer: `name` is `module:class`; the rest as in `OptimizerSpec`. Only where it steps are there values."""

    name: str
    groups: Groups
    defaults: dict[str, Any] = {}
    carried: Carried | None = None

    @classmethod
    def of(cls, spec: OptimizerSpec, steps_elsewhere: bool) -> OptimizerData:
        """`spec` for another process.

        Raises:
            ConfigurationError: it is to step there, and something that it takes cannot be sent.
        """
        name = f"{spec.kind.__module__}:{spec.kind.__qualname__}"
        if not steps_elsewhere:
            return cls(name, [dict.fromkeys(group) for group in spec.groups])
        carried = spec.carried and Carried(tuple(Held(one.whole, _packed(one.rest)) for one in spec.carried.held))
        arguments = {f"argument {key!r}": value for key, value in spec.defaults.items()}
        states = {f"state {key!r}": one.rest[key] for one in (carried.held if carried else ()) for key in one.rest}
        check_sendable(spec.kind.__name__, {**named(spec.groups), **arguments, **states})
        return cls(name, spec.groups, spec.defaults, carried)

    def spec(self) -> OptimizerSpec:
        """What to build it by.

        Raises:
            ConfigurationError: its class is not to be had here.
        """
        carried = self.carried and Carried(tuple(Held(one.whole, _unpacked(one.rest)) for one in self.carried.held))
        return OptimizerSpec(class_named(self.name), self.defaults, self.groups, carried)

    def check_same(self, other: OptimizerData, worker: int, reference: int) -> None:
        """Raise `ConfigurationError` if `other`, of worker `worker`, is no optimizer like this one. Values may differ."""
        difference = self._difference(other)
        if difference:
            raise ConfigurationError(
                f"worker {worker} does not hold the same optimizer as worker {reference}: {difference}; build it the same "
                "way on every worker (values, such as lr, may differ)"
            )

    def _difference(self, other: OptimizerData) -> str:
        wanted, got = (one.name.replace(":", ".") for one in (self, other))
        if wanted != got:
            return f"{wanted} was wanted, got {got}"
        if len(self.groups) != len(other.groups):
            return f"{len(self.groups)} parameter groups were wanted, got {len(other.groups)}"
        for number, (want, have) in enumerate(zip(self.groups, other.groups, strict=True)):
            if want.keys() - SCHEDULED != have.keys() - SCHEDULED:
                return f"group {number}: wanted the settings {sorted(want)}, got {sorted(have)}"
        return ""


def class_named(name: str) -> type[Optimizer]:
    """The optimizer's class that `name` (`module:class`) stands for.

    One that is loaded comes first: to import a script would run it.

    Raises:
        ConfigurationError: there is none.

    >>> class_named("torch.optim.sgd:SGD").__name__
    'SGD'
    """
    module, _, qualified = name.partition(":")
    for find in (lambda: sys.modules[module], lambda: _loaded(name), lambda: importlib.import_module(module)):
        try:
            found = find()
            kind = found if isinstance(found, type) else attrgetter(qualified)(found)
        except (ImportError, AttributeError, LookupError, ValueError):
            continue
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            return kind
    raise ConfigurationError(
        f"the server, where {name.replace(':', '.')} is to step, finds no optimizer of that name: define its class at the "
        f"top of a module or of the script, or {STAY}"
    )


def _loaded(name: str) -> type[Optimizer]:
    """The newest class of that name in this process, as one that came with the training function is in no module."""
    return [one for one in _below(Optimizer) if f"{one.__module__}:{one.__qualname__}" == name][-1]


def _below(kind: type[Optimizer]) -> Iterator[type[Optimizer]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _packed(state: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer keeps of a parameter, with its small tensors as bytes."""
    return {
        key: {"tensor": save({"": value.detach().contiguous()})} if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }


def _unpacked(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: load(value["tensor"])[""] if isinstance(value, dict) and "tensor" in value else value
        for key, value in state.items()
    }
