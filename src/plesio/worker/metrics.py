"""What a training function logs: numbers by name, sent on as their means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from plesio.errors import ConfigurationError, as_utf8
from plesio.worker.context import WorkerContext

LOG_S = 0.1  # how often logged numbers are sent on


class Metrics:
    """One worker's, since they were sent on last."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._values: dict[str, list[float]] = {}
        self._steps = self._sent_steps = 0
        self._sent_s = context.now_s()

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Keep them, and send on the means where it is time."""
        for name, value in metrics.items():
            number = number_of("worker.log", name, value)
            if name == "loss":
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
        means = {as_utf8(name): sum(values) / len(values) for name, values in self._values.items()}
        self._context.logged(self._steps - self._sent_steps, means)
        self._values.clear()
        self._sent_steps = self._steps
        self._sent_s = self._context.now_s()


def number_of(call: str, name: str, value: Any) -> float:
    """A number, or a tensor of one; `ConfigurationError` if `call` was given another `value` by this `name`."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigurationError(f"{call}({name}=...): {type(value).__name__} is not one number ({error})") from error
