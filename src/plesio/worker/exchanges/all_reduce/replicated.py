"""The model a training loop gets where every worker keeps a whole replica: the user's own, with its gradients shared."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from plesio.errors import ConfigurationError

IDLE = 1  # parameters of `ReplicatedModel` that are not the model's and never take part in a loss
_IDLE_ONLY = object()  # asks a `_Shell` for a loss in which only the idle parameter takes part
PASSED_ON = ("state_dict", "load_state_dict", "__repr__", "__len__", "__getitem__", "__iter__", "__contains__")
"""Methods that are the model's (if it has them) and that `__getattr__` does not find: looked up on the class, or nn.Module's."""
Hook = Callable[[GradBucket], torch.futures.Future[torch.Tensor]]


class ReplicatedModel(nn.Module):
    """The user's model, called through torch's DistributedDataParallel.

    A call computes what the model computes; the backward pass that follows hands the gradients to `hook`, bucket by
    bucket. Otherwise it behaves like the model: parameters and buffers have their own names (without "module."), and
    attributes and methods are the model's. `copy.deepcopy` copies the model.

    Args:
        group: the process group by which DistributedDataParallel asks which parameters took part in the loss.
        ignored: names of tensors that nobody reduces.
        check: called before each forward pass, since torch's own message about a replaced tensor is hard to read.
        expect: called after each forward pass whose backward pass will be reduced.
    """

    def __init__(
        self,
        model: nn.Module,
        group: dist.ProcessGroup,
        ignored: Sequence[str],
        hook: Hook,
        check: Callable[[], None] = lambda: None,
        expect: Callable[[], None] = lambda: None,
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ConfigurationError(
                "a model that torch.jit traced or scripted cannot be wrapped, as all-reduce does it: give prepare the module "
                "that it was made from, or take a strategy with a server, such as sync_sgd"
            )
        super().__init__()
        object.__setattr__(self, "__class__", _kind(type(model)))
        shell = _Shell(model)
        hidden = [f"model.{name}" for name in ignored]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(shell, hidden)  # type: ignore[no-untyped-call]
        # Looking for unused parameters also keeps the buckets fixed. Otherwise each worker would rebuild them after its
        # first step, in the order of its own gradients, and the workers' buckets would no longer match.
        # Gradients are not views of the buckets, at the cost of a copy each way and their memory once more. With views,
        # `.grad.data = ...` (loss scaling, centring) would detach one, and all later means would miss that parameter.
        reducer = DistributedDataParallel(
            shell, process_group=group, find_unused_parameters=True, gradient_as_bucket_view=False, init_sync=False
        )
        reducer.register_comm_hook(None, lambda state, bucket: hook(bucket))  # it reads annotations, and not as strings
        self.__dict__.update(_model=model, _reducer=reducer, _check=check, _expect=expect)
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = model.__dict__[name]
        del self.__dict__["training"]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["_check"]()
        output = self.__dict__["_reducer"](*args, **kwargs)
        if torch.is_grad_enabled():
            self.__dict__["_expect"]()
        return output

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


class UnreducedGradients:
    """Gradients that no reduction included.

    DistributedDataParallel reduces one backward pass after each forward pass. Other backward passes add this worker's own
    gradients to `.grad`. Such are a second one through the same forward pass, or a penalty on the parameters, which avoids the
    prepared model. The mean of (shared + own) is shared + the mean of own. So one more reduction of all of `.grad` puts it right.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.found = False
        self._reduction_follows = False
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]

    def after_forward(self) -> None:
        """The next backward pass will be reduced."""
        self._reduction_follows = True

    def _added(self, parameter: torch.Tensor) -> None:
        self.found = self.found or not self._reduction_follows

    def after_backward(self) -> None:
        """A reduced backward pass ends, and the reduction includes all gradients so far."""
        self._reduction_follows = self.found = False


def reduce_again(model: ReplicatedModel) -> None:
    """Reduce the gradients as they are: by a backward pass that adds nothing to them."""
    with torch.enable_grad():
        model.__dict__["_reducer"](_IDLE_ONLY).backward()


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
