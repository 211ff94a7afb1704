"""What a training function logs: numbers by name, sent on as their means.

What lies on a device is copied there, and read when it is sent on: the training loop does not wait for the device in each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from plesio.errors import ConfigurationError, as_utf8
from plesio.worker.context import WorkerContext

LOG_S = 0.1  # how often logged numbers are sent on
Logged = float | torch.Tensor
"""A number, or a tensor of one on a device."""


class Metrics:
    """One worker's, since they were sent on last."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._values: dict[str, list[Logged]] = {}
        self._steps = self._sent_steps = 0
        self._sent_s = context.now_s()

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Keep them, and send on the means where it is time."""
        for name, value in metrics.items():
            number = kept("worker.log", name, value)
            if name == "loss" and isinstance(number, float):
                self._context.state.loss = number
            self._values.setdefault(name, []).append(number)
        self.reach()
        if self._context.now_s() - self._sent_s > LOG_S:
            self.flush()

    def reach(self) -> None:
        """What follows is of later steps."""
        self._steps = self._context.state.steps

    def flush(self) -> None:
        if not self._values:
            return
        numbers = {name: read(values) for name, values in self._values.items()}
        if "loss" in numbers:
            self._context.state.loss = numbers["loss"][-1]
        means = {as_utf8(name): sum(values) / len(values) for name, values in numbers.items()}
        self._context.logged(self._steps - self._sent_steps, means)
        self._values.clear()
        self._sent_steps = self._steps
        self._sent_s = self._context.now_s()


def kept(call: str, name: str, value: Any) -> Logged:
    """A number as `number_of` gives it, or a copy of it on the device that has it."""
    if not isinstance(value, torch.Tensor) or value.is_cpu or value.numel() != 1 or value.is_complex():
        return number_of(call, name, value)
    return value.detach().reshape(()).clone()


def read(values: Sequence[Logged]) -> list[float]:
    """What `kept` gave, as numbers; a device is waited for once.

    >>> read([1.0, torch.tensor(2), 3.0])
    [1.0, 2.0, 3.0]
    """
    there = [one for one in values if isinstance(one, torch.Tensor)]
    numbers = iter(torch.stack([one.to(there[0].device) for one in there]).tolist() if there else ())
    return [float(next(numbers)) if isinstance(one, torch.Tensor) else one for one in values]


def number_of(call: str, name: str, value: Any) -> float:
    """A number, or a tensor of one; `ConfigurationError` if `call` was given another `value` by this `name`."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigurationError(f"{call}({name}=...): {type(value).__name__} is not one number ({error})") from error
