"""A user's optimizer in words: what another process needs to build one like it."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch.optim import Optimizer, SparseAdam

from plesio.errors import ConfigurationError
from plesio.tensors.carrying import Carried

SCHEDULED = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
"""Keys that torch's schedulers keep in an optimizer's groups; no optimizer reads them."""

Groups = list[dict[str, Any]]

STAY = "take a strategy whose optimizer stays in the worker, such as local_sgd"
"""What to do with an optimizer that cannot step at the server."""


class OptimizerSpec(msgspec.Struct, frozen=True):
    """What it takes to build a user's optimizer elsewhere: its class, its defaults, its groups without parameters.

    `carried` describes the state it holds already, if that goes there too.
    """

    kind: type[Optimizer]
    defaults: dict[str, Any]
    groups: Groups
    carried: Carried | None = None

    @classmethod
    def of(cls, optimizer: Optimizer, tensors: Sequence[torch.Tensor] = ()) -> OptimizerSpec:
        """Describe `optimizer`; if it is to step at the server, with the state it holds for these tensors of a model.

        Raises:
            ConfigurationError: an optimizer that cannot run there.
        """
        name = type(optimizer).__name__
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigurationError(
                f"{name} evaluates the loss inside its step, which no worker is there for; use SGD, Adam, AdamW, ..."
            )
        if tensors:
            _check_moves(optimizer)
        carried = Carried.by(optimizer, tensors) if tensors else None
        accepted = inspect.signature(type(optimizer).__init__).parameters
        given = {**(_unlisted(optimizer) if tensors else {}), **optimizer.defaults}
        defaults = {key: number(value) for key, value in given.items() if key in accepted}
        return cls(type(optimizer), defaults, hyper_parameters(optimizer), carried)


def full_name(kind: type) -> str:
    """A class's name with its module.

    >>> full_name(torch.optim.SGD)
    'torch.optim.sgd.SGD'
    """
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_moves(optimizer: Optimizer) -> None:
    """Raise `ConfigurationError` for an optimizer that cannot step at the server, for a reason of its kind."""
    name, inner = type(optimizer).__name__, getattr(optimizer, "optimizer", None)
    if isinstance(optimizer, SparseAdam):
        raise ConfigurationError(
            f"{name} takes sparse gradients only, and to the server they travel dense; use Adam, or {STAY}"
        )
    if isinstance(inner, Optimizer):
        raise ConfigurationError(
            f"{name} wraps {type(inner).__name__}, and the server, where it is to step, cannot build it again: call "
            f"worker.prepare before {name}'s own prepare (accelerator.prepare, fabric.setup), or {STAY}"
        )


def _unlisted(optimizer: Optimizer) -> dict[str, Any]:
    """What the optimizer's `__init__` was given that is not among its `defaults`, as far as attributes of the name tell.

    Raises:
        ConfigurationError: nothing tells what it was given.
    """
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
    """The settings of each parameter group for an optimizer elsewhere: without the parameters, a learning rate held in a
    tensor or by NumPy as a number, and not for a CUDA graph (`capturable`), which knows no CPU."""
    left_out = ("params", "param_names")
    return [
        {key: key != "capturable" and number(value) for key, value in group.items() if key not in left_out}
        for group in optimizer.param_groups
    ]


def packed(optimizer: Optimizer) -> bytes:
    """Its hyper-parameters, to be sent.

    Raises:
        ConfigurationError: one of them is nothing that can be.
    """
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


def settings_of(optimizer: Optimizer) -> Groups:
    """The parameter groups as they are now: equal to `optimizer.param_groups` until somebody changes a setting.

    The list of parameters is among the values, the same object every time and compared as that. A learning rate held in a
    tensor, which may change under its own name, is kept as a number.
    """
    return [
        {key: value if key == "params" else number(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]


def number(value: Any) -> Any:
    """A setting that is held in a tensor or by NumPy, as a number, also within a tuple or list; others as they are.

    >>> number((np.float64(0.5), torch.tensor(2)))
    (0.5, 2)
    """
    if isinstance(value, (tuple, list)):
        numbers = map(number, value)
        return tuple(numbers) if isinstance(value, tuple) else list(numbers)
    held = isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    return value.item() if held else value
