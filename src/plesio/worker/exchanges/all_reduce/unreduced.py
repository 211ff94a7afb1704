"""Gradients that no reduction included.

DistributedDataParallel reduces one backward pass after each forward pass. Other backward passes add this worker's own gradients
to `.grad`: a second one through the same forward pass, a penalty on the parameters, or one through the model that was given to
prepare. The mean of (shared + own) is shared + the mean of own. So one more reduction of all of `.grad` puts it right, and a
reduced pass that follows does so anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd import Variable


class UnreducedGradients:
    """Those of `parameters`. `pending`: whether there are any."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._reduces = False  # the next pass is reduced
        self._ends = False  # the engine will say when the pass under way ends
        self.pending = False
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def after_forward(self, reduced: bool) -> None:
        """The next backward pass is `reduced`, or is in `no_sync`."""
        self._reduces = reduced

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if not self._reduces:
            self.pending = True
        elif not self._ends:
            self._ends = True
            Variable._execution_engine.queue_callback(self._reduced)

    def _reduced(self) -> None:
        """A reduced backward pass has ended, and its reduction took along all gradients so far."""
        self._reduces = self._ends = self.pending = False
