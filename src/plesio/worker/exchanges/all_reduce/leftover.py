"""Gradients that no reduction took along.

DistributedDataParallel reduces one backward pass after each forward pass. A second one through the same forward pass adds
to `.grad` what this worker alone computed, and so does one that never went through the prepared model, such as a penalty's
on its parameters. Since the mean of (what all share + own) is what all share + the mean of the own, one more reduction of
all there is puts it right (`plesio.worker.exchanges.all_reduce.replicated.reduce_again`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class Leftover:
    """Whether this worker has some: `there`."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.there = False
        self._expected = False
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]

    def expect(self) -> None:
        """A forward pass is over: the next backward pass will be reduced."""
        self._expected = True

    def _added(self, parameter: torch.Tensor) -> None:
        self.there = self.there or not self._expected

    def reduced(self) -> None:
        """A backward pass came to its end, and all that was added to gradients until now is being reduced."""
        self._expected = self.there = False
