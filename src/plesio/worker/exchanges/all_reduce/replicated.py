"""The model a training loop gets where every worker keeps a whole replica: the user's own, with its gradients shared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plesio.errors import ConfigurationError
from plesio.tensors.codecs.cast import DTYPES

_IDLE_ONLY = object()  # asks a `_Shell` for a loss in which only the idle parameter takes part
PASSED_ON = ("state_dict", "load_state_dict", "__repr__", "__len__", "__getitem__", "__iter__", "__contains__")
"""Methods that are the model's (if it has them) and that `__getattr__` does not find: looked up on the class, or nn.Module's."""


class ReplicatedModel(nn.Module):
    """The user's model, called through torch's DistributedDataParallel.

    A call computes what the model computes; the backward pass that follows averages the gradients over the default group. Without
    gradients (`torch.no_grad()`) a call is the model's alone, so that one worker may evaluate. Otherwise it behaves like the
    model: parameters and buffers have their own names (without "module."), and attributes and methods are the model's.
    `copy.deepcopy` copies the model.

    Args:
        check: called before each forward pass, since torch's own message about a replaced tensor is hard to read.
        expect: called after each forward pass with gradients: whether its backward pass will be reduced, or is in `no_sync`.
        half: "bf16" or "fp16", if gradients are to travel in that.
    """

    def __init__(
        self,
        model: nn.Module,
        check: Callable[[], None] = lambda: None,
        expect: Callable[[bool], None] = lambda reduced: None,
        half: str | None = None,
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ConfigurationError(
                "a model that torch.jit traced or scripted cannot be wrapped, as all-reduce does it: give prepare the module "
                "that it was made from, or take a strategy with a server, such as sync_sgd"
            )
        super().__init__()
        object.__setattr__(self, "__class__", _kind(type(model)))
        # Not all parameters need take part in each loss. Gradients are not views of the buckets, at the cost of a copy each way
        # and their memory once more: with views `.grad.data = ...` (loss scaling, centring) would detach one, and all later
        # means would miss that parameter.
        reducer = DistributedDataParallel(
            _Shell(model), find_unused_parameters=True, gradient_as_bucket_view=False, init_sync=False
        )
        if half is not None:
            reducer.register_comm_hook(DTYPES[half], lambda dtype, bucket: _in_half_precision(dtype, bucket))
        self.__dict__.update(_model=model, _reducer=reducer, _check=check, _expect=expect)
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = model.__dict__[name]
        del self.__dict__["training"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.__dict__["_model"](*args, **kwargs)
        self.__dict__["_check"]()
        reducer = self.__dict__["_reducer"]
        output = reducer(*args, **kwargs)
        self.__dict__["_expect"](reducer.require_backward_grad_sync)
        return output

    def no_sync(self) -> AbstractContextManager[None]:
        """As of DistributedDataParallel: passes inside add up, and are averaged with the first one outside."""
        within: AbstractContextManager[None] = self.__dict__["_reducer"].no_sync()
        return within

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward":  # mixed precision wraps ours: set on the model, it would call itself
            self.__dict__[name] = value
        else:
            setattr(self.__dict__["_model"], name, value)

    def train(self, mode: bool = True) -> ReplicatedModel:
        self.__dict__["_model"].train(mode)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        twin: nn.Module = copy.deepcopy(self.__dict__["_model"], memo)
        return twin

    def __reduce__(self) -> Any:
        return copy.copy, (self.__dict__["_model"],)


def reduce_again(model: ReplicatedModel) -> None:
    """Reduce the gradients as they are: by a backward pass that adds nothing to them."""
    with torch.enable_grad():
        model.__dict__["_reducer"](_IDLE_ONLY).backward()


def _in_half_precision(dtype: torch.dtype, bucket: Any) -> Any:
    """As torch's own hooks `bf16_compress_hook` and `fp16_compress_hook`, which do not take gloo: without feedback."""
    mean = bucket.buffer().to(dtype).div_(dist.get_world_size())
    reduced = dist.all_reduce(mean, async_op=True).get_future()
    return reduced.then(lambda done: bucket.buffer().copy_(done.value()[0]))


class _Shell(nn.Module):
    """The model, and a parameter that takes no part in any loss: without one, DistributedDataParallel warns on the terminal."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
        self.idle = nn.Parameter(torch.zeros(1, dtype=first.dtype, device=first.device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if args and args[0] is _IDLE_ONLY:
            return (self.idle * 0).sum()
        return self.model(*args, **kwargs)


def _kind(model: type[nn.Module]) -> type[ReplicatedModel]:
    """`ReplicatedModel` with the signature of the model's forward, which trainers read; a sequence, if the model is one."""

    def passed_on(name: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: getattr(self.__dict__["_model"], name)(*args, **kwargs)

    def forward(self: ReplicatedModel, *args: Any, **kwargs: Any) -> Any:
        return ReplicatedModel.forward(self, *args, **kwargs)

    forward.__signature__ = inspect.signature(model.forward)  # type: ignore[attr-defined]
    methods = {name: passed_on(name) for name in PASSED_ON if hasattr(model, name)}
    return type("ReplicatedModel", (ReplicatedModel,), {"forward": forward, **methods})
