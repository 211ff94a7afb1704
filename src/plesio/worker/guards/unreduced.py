"""All-reduce guard: gradients that no reduction included.

DistributedDataParallel reduces one backward pass after each forward pass. Other backward passes add this worker's own
gradients to `.grad`: a second one through the same forward pass, or one that avoids the prepared model, such as a penalty on
its parameters. The mean of (shared + own) is shared + the mean of own. So one more reduction of all of `.grad` puts it right
(`plesio.worker.exchanges.all_reduce.replicated.reduce_again`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class UnreducedGradients:
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
