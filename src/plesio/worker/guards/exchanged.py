"""The parameters of this process that a run exchanges: who else moves them, or writes into them, is noticed.

- An optimizer that the run does not know, such as a second one over the prepared model, would train this worker alone. torch
  calls a global hook before each step of any: there it is refused. So is one that lives on from step to step of the run over
  tensors that no prepared module holds: of several workers each would train its own.
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
from plesio.worker.warn import warn

LIVES_ON = 2  # steps of the run


class Stepping(Protocol):
    """What parameters are exchanged by. `stepping`: whether a step of its own is under way; `own_tensors`: what is done where a
    worker trains tensors of its own ("", "warn" or "refuse"); `state.steps`: that this worker took."""

    stepping: bool
    own_tensors: str
    state: Any


_exchanged: MutableMapping[torch.Tensor, ref[Stepping]] = WeakIdKeyDictionary()
_first: MutableMapping[Optimizer, int] = (
    WeakKeyDictionary()
)  # the run's step at which one that it does not know was seen
_last: ref[Stepping] | None = None
_data = torch.Tensor.data
_watching = False


def watch(parameters: Iterable[torch.Tensor], exchange: Stepping) -> None:
    """From now on only steps of `exchange` move these, and writes by `.data` are counted.

    >>> class Other:
    ...     stepping, own_tensors, state = False, "", None
    >>> weight, exchange = nn.Parameter(torch.ones(1)), Other()
    >>> watch([weight], exchange)
    >>> before = weight._version
    >>> _ = weight.data.clamp_(max=0.5)
    >>> weight._version > before
    True
    """
    global _watching, _last
    _last = by = ref(exchange)
    for one in parameters:
        _exchanged[one] = by
    if not _watching:
        _watching = True
        register_optimizer_step_pre_hook(before_step)
        nn.Parameter.data = property(_counted, _data.__set__)  # type: ignore[assignment,attr-defined]


def unwatch(parameters: Iterable[torch.Tensor]) -> None:
    """The run is over, and they are the script's."""
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
    run = _last() if _last is not None and _exchanged else None
    if run is not None and run.own_tensors and not is_engine(_caller()):
        _of_its_own(optimizer, run)


def _of_its_own(optimizer: Optimizer, run: Stepping) -> None:
    """It holds nothing that is exchanged. One that is made anew for each step, such as for an attack, is the loop's own."""
    if run.state.steps - _first.setdefault(optimizer, run.state.steps) < LIVES_ON:
        return
    told = (
        f"step() of {type(optimizer).__name__}, which prepare was not given: it moves tensors that no prepared module holds, so "
        f"each worker trains its own. Give prepare their module and this optimizer, too. {OF_NO_MODULE}"
    )
    if run.own_tensors == "refuse":
        raise ConfigurationError(f"{told}. If each worker is to have its own, say prepare(..., on_write='warn')")
    run.own_tensors = ""
    warn(told)


def _caller() -> FrameType:
    """Who called step()."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return frame
