"""A user's optimizer in plain data: the name of its class, numbers, text, and bytes of small tensors.

The class travels by its name. The receiver imports it, or has it already: what a script defines comes to a server on the
same host with the training function.
"""

from __future__ import annotations

import importlib
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import torch
from torch.optim import LBFGS, Optimizer

from plesio.errors import ConfigurationError
from plesio.tensors.carrying import Carried

SCHEDULED = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
"""Keys that torch's schedulers keep in an optimizer's groups; no optimizer reads them."""

Groups = list[dict[str, Any]]

STAY = "take a strategy whose optimizer stays in the worker, such as local_sgd"
"""What to do with an optimizer that cannot step at the server."""


class OptimizerSpec(msgspec.Struct, frozen=True, dict=True):
    """What it takes to build a user's optimizer, named `module:class`, elsewhere; of one that stays here, names only."""

    name: str
    groups: Groups
    defaults: dict[str, Any] = {}
    carried: Carried | None = None

    @classmethod
    def of(cls, optimizer: Optimizer, tensors: Sequence[torch.Tensor] = ()) -> OptimizerSpec:
        """Describe `optimizer`; if it is to step at the server, with the state it holds for these tensors of a model."""
        kind = type(optimizer)
        accepted = inspect.signature(kind.__init__).parameters
        defaults = {key: number(value) for key, value in optimizer.defaults.items() if key in accepted}
        name, groups = f"{kind.__module__}:{kind.__qualname__}", hyper_parameters(optimizer)
        if not tensors:
            return cls(name, groups, defaults)
        _check_moves(optimizer)
        defaults = {key: number(value) for key, value in _unlisted(optimizer).items()} | defaults
        carried = Carried.by(optimizer, tensors)
        arguments = {f"argument {key!r}": value for key, value in defaults.items()}
        states = {f"state {key!r}": one.rest[key] for one in (carried.held if carried else ()) for key in one.rest}
        check_sendable(kind.__name__, {**named(groups), **arguments, **states})
        return cls(name, groups, defaults, carried)

    @classmethod
    def names_of(cls, optimizer: Optimizer) -> OptimizerSpec:
        """Describe an optimizer that stays in its worker."""
        spec = cls.of(optimizer)
        return cls(spec.name, [dict.fromkeys(group) for group in spec.groups])

    @cached_property
    def kind(self) -> type[Optimizer]:
        """Its class; `ConfigurationError` where that is not to be had."""
        return class_named(self.name)

    def difference(self, other: OptimizerSpec) -> str:
        """What makes `other` an optimizer unlike this one; values may differ."""
        wanted, got = (one.name.replace(":", ".") for one in (self, other))
        if wanted != got:
            return f"{wanted} was wanted, got {got}"
        if len(self.groups) != len(other.groups):
            return f"{len(self.groups)} parameter groups were wanted, got {len(other.groups)}"
        for number, (want, have) in enumerate(zip(self.groups, other.groups, strict=True)):
            if want.keys() - SCHEDULED != have.keys() - SCHEDULED:
                return f"group {number}: wanted the settings {sorted(want)}, got {sorted(have)}"
        return ""


def check_same_optimizers(
    ours: Sequence[OptimizerSpec], theirs: Sequence[OptimizerSpec], worker: int, reference: int
) -> None:
    """Raise `ConfigurationError` if `theirs`, of worker `worker`, are no optimizers like `ours`, of worker `reference`."""
    difference = f"{len(ours)} optimizers were wanted, got {len(theirs)}" if len(ours) != len(theirs) else ""
    for one, other in zip(ours, theirs, strict=False):
        difference = difference or one.difference(other)
    if difference:
        raise ConfigurationError(
            f"worker {worker} does not hold the same optimizer as worker {reference}: {difference}; build it the same "
            "way on every worker (values, such as lr, may differ)"
        )


def class_named(name: str) -> type[Optimizer]:
    """The optimizer's class that `name` (`module:class`) stands for. One that is loaded comes first: to import runs a script.

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


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_moves(optimizer: Optimizer) -> None:
    """Raise `ConfigurationError` for an optimizer that cannot step at the server, for a reason of its kind."""
    name, inner = type(optimizer).__name__, getattr(optimizer, "optimizer", None)
    if isinstance(optimizer, LBFGS):
        raise ConfigurationError(f"{name} evaluates the loss inside its step, and the server has no data: {STAY}")
    check_has_rate(optimizer)
    if isinstance(inner, Optimizer):
        raise ConfigurationError(
            f"{name} wraps {type(inner).__name__}, and the server, where it is to step, cannot build it again: call "
            f"worker.prepare before {name}'s own prepare (accelerator.prepare, fabric.setup), or {STAY}"
        )


def check_has_rate(optimizer: Optimizer) -> None:
    """Raise `ConfigurationError` for one whose learning rate the strategy could not share among workers."""
    if any("lr" not in group for group in optimizer.param_groups):
        known = ", ".join(sorted({key for group in optimizer.param_groups for key in group} - {"params"}))
        raise ConfigurationError(
            f"{type(optimizer).__name__} has no setting 'lr' (it has {known or 'none'}), and the strategy shares the learning "
            f"rate among the workers: call it 'lr' as torch's optimizers do, or {STAY}"
        )


def _unlisted(optimizer: Optimizer) -> dict[str, Any]:
    """What the optimizer's `__init__` was given that is not among its `defaults`, as far as attributes of the name tell."""
    given: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(type(optimizer).__init__).parameters.items())[2:]:
        if name in optimizer.defaults or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if not hasattr(optimizer, name):
            kind = type(optimizer).__name__
            raise ConfigurationError(
                f"{kind} steps at the server, which has to build it again, and nothing tells which {name!r} it was given: "
                f"name it in its defaults or keep it as self.{name}, or {STAY}"
            )
        given[name] = getattr(optimizer, name)
    return given


def hyper_parameters(optimizer: Optimizer) -> Groups:
    """The settings of each parameter group for an optimizer elsewhere; not for a CUDA graph (`capturable`): it knows no CPU."""
    left_out = ("params", "param_names")
    return [
        {key: key != "capturable" and number(value) for key, value in group.items() if key not in left_out}
        for group in optimizer.param_groups
    ]


def packed(optimizer: Optimizer) -> bytes:
    """Its hyper-parameters, to be sent; `ConfigurationError` if one of them cannot be."""
    groups = hyper_parameters(optimizer)
    try:
        return msgspec.msgpack.encode(groups)
    except (TypeError, OverflowError):
        check_sendable(type(optimizer).__name__, named(groups))
        raise


def named(groups: Groups) -> dict[str, Any]:
    """Each setting by what to call it."""
    return {f"setting {key!r} in group {place}": one[key] for place, one in enumerate(groups) for key in one}


def check_sendable(optimizer: str, values: dict[str, Any]) -> None:
    """Raise `ConfigurationError` for the first of these named values of an optimizer that cannot be sent."""
    for what, value in values.items():
        if reason := unsendable(value):
            kind = full_name(type(value)).removeprefix("builtins.")
            raise ConfigurationError(
                f"the {what} of {optimizer} is {reprlib.repr(value)} ({kind}), which cannot be sent to the server, where it "
                f"steps: {reason}; allowed are numbers, text, True, False, None, and tuples, lists and dicts of them; or {STAY}"
            )


def unsendable(value: Any) -> str:
    """Why a setting cannot be sent, nor kept in a file; nothing if it can.

    >>> unsendable((0.9, None)), unsendable(1j)
    ('', 'Encoding objects of type complex is unsupported')
    """
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, OverflowError) as error:
        return str(error)
    return ""


def has_momentum(optimizer: Optimizer) -> bool:
    """Whether any group has a `momentum`, as of SGD. Adam's first moment is none: it divides each step by the second.

    >>> model = torch.nn.Linear(1, 1)
    >>> has_momentum(torch.optim.SGD(model.parameters(), momentum=0.9)), has_momentum(torch.optim.AdamW(model.parameters()))
    (True, False)
    """
    return any(group.get("momentum") for group in optimizer.param_groups)


def settings_of(optimizer: Optimizer) -> Groups:
    """The parameter groups as they are now: equal to `optimizer.param_groups` until somebody changes a setting.

    The list of parameters is compared as the object that it is. A learning rate in a tensor, which may change in place,
    is kept as a number; on a device, which would have to be waited for, as `Unwritten`.
    """
    return [
        {key: value if key == "params" else number(value, Unwritten) for key, value in group.items()}
        for group in optimizer.param_groups
    ]


class Unwritten:
    """Equal to a tensor until somebody writes into it.

    >>> rate = torch.tensor(0.1)
    >>> then = Unwritten(rate)
    >>> rate == then, rate.fill_(0.2) == then, rate.clone() == then
    (True, False, False)
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, tensor._version

    def __eq__(self, other: object) -> bool:
        return other is self._tensor and self._tensor._version == self._version

    __hash__ = None  # type: ignore[assignment]


def number(value: Any, on_device: Callable[[torch.Tensor], Any] = torch.Tensor.item) -> Any:
    """A setting that is held in a tensor or by NumPy, as a number, also within a tuple or list; others as they are. `on_device`
    is what becomes of a tensor that is not on the CPU.

    >>> number((np.float64(0.5), torch.tensor(2)))
    (0.5, 2)
    """
    if isinstance(value, (tuple, list)):
        numbers = [number(one, on_device) for one in value]
        return tuple(numbers) if isinstance(value, tuple) else numbers
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item() if value.is_cpu else on_device(value)
    return value.item() if isinstance(value, np.generic) else value
