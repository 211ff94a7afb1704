"""The parameters of this process that a run exchanges: who else moves them, or writes into them, is noticed.

- An optimizer that the run does not know, such as a second one over the prepared model, would train this worker alone. torch
  calls a global hook before each step of any: there it is refused. One that lives on from step to step of the run over tensors
  that no prepared module holds is warned of, or refused where they are no parameters: of several workers each trains its own.
- A tensor counts the writes into it, but not those by its `.data`. Of these parameters `.data` is `.detach()`, which counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableMapping
from types import FrameType
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from plesio.errors import ConfigurationError, is_engine
from plesio.tensors.model import OF_NO_MODULE
from plesio.worker.state import WorkerState
from plesio.worker.warn import warn


class Stepping(Protocol):
    """What parameters are exchanged by. `stepping`: whether a step of its own is under way."""

    stepping: bool


_exchanged: MutableMapping[torch.Tensor, ref[Stepping]] = WeakIdKeyDictionary()
_warned: WorkerState | None = None  # of the worker that is to be warned
_met: MutableMapping[Optimizer, int] = WeakKeyDictionary()  # after how many of its steps
_data = torch.Tensor.data
_watching = False


def watch(parameters: Iterable[torch.Tensor], exchange: Stepping, warned: WorkerState | None = None) -> None:
    """From now on only steps of `exchange` move these, and writes by `.data` are counted. `warned`: the worker, if it is to be
    warned of an optimizer over tensors of its own.

    >>> class Other:
    ...     stepping = False
    >>> weight, exchange = nn.Parameter(torch.ones(1)), Other()
    >>> watch([weight], exchange)
    >>> before = weight._version
    >>> _ = weight.data.clamp_(max=0.5)
    >>> weight._version > before
    True
    """
    global _watching, _warned
    _warned = warned or _warned
    by = ref(exchange)
    for one in parameters:
        _exchanged[one] = by
    if not _watching:
        _watching = True
        register_optimizer_step_pre_hook(before_step)
        nn.Parameter.data = property(_counted, _data.__set__)  # type: ignore[assignment,attr-defined]


def unwatch(parameters: Iterable[torch.Tensor]) -> None:
    """The run is over, and they are the script's."""
    global _warned
    _warned = None
    for one in parameters:
        _exchanged.pop(one, None)


def _counted(parameter: torch.Tensor) -> Any:
    return parameter.detach() if parameter in _exchanged else _data.__get__(parameter)  # type: ignore[attr-defined]


def before_step(optimizer: Optimizer, *_: Any) -> None:
    """The hook. A prepared optimizer that steps at the server leaves it out: it knows that the step is of the run."""
    for group in optimizer.param_groups if _exchanged else ():
        for parameter in group["params"]:
            by = _exchanged.get(parameter)
            exchange = by() if by is not None else None
            if exchange is not None:
                if exchange.stepping:
                    return
                raise ConfigurationError(
                    f"step() of {type(optimizer).__name__}, which moves parameters of the run and is not what prepare returned: "
                    "this worker would train alone. Call step() of the prepared optimizer; for a restart change its "
                    "param_groups, or take allreduce on one host without a GPU, where any optimizer may step"
                )
    if _warned is not None and not is_engine(_caller()):
        _warn_of_own(optimizer, _warned)


def _warn_of_own(optimizer: Optimizer, state: WorkerState) -> None:
    """One that is made anew for each step of the run, such as for an attack, is the loop's own."""
    global _warned
    if not any(group["params"] for group in optimizer.param_groups):
        return  # its embeddings have become tables
    if state.steps - _met.setdefault(optimizer, state.steps) < 2:
        return
    told = (
        f"{type(optimizer).__name__}, which prepare was not given, trains tensors that no prepared module holds: each worker "
        f"trains its own. To train one for all, give prepare their module and this optimizer, too. {OF_NO_MODULE}"
    )
    if not all(isinstance(one, nn.Parameter) for group in optimizer.param_groups for one in group["params"]):
        raise ConfigurationError(f"{told}. To have one for each worker, leave a torch.nn.Parameter out of prepare")
    _warned = None
    warn(told)


def _caller() -> FrameType:
    """Who called step()."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return frame
