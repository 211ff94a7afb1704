"""Gradients that no reduction included.

DistributedDataParallel reduces one backward pass after each forward pass. Other backward passes add this worker's own gradients
to `.grad`: a second one through the same forward pass, a penalty on the parameters, or one through the model that was given to
prepare. The mean of (shared + own) is shared + the mean of own. So one more reduction of all of `.grad` puts it right.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
import torch.distributed as dist
from torch.autograd import Variable


class Next(Enum):
    """What becomes of the next gradients: DistributedDataParallel reduces them, now or with a later pass (`no_sync`); or not."""

    REDUCED = 1
    REDUCED_LATER = 2
    OWN = 3


class UnreducedGradients:
    """Those of `parameters`. `pending`: whether there are any."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._next = Next.OWN
        self._ends = False  # the engine will say when the pass under way ends
        self._added = self._waits = False  # beside reductions, and within no_sync
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    @property
    def pending(self) -> bool:
        return self._added or self._waits

    def after_forward(self, reduced: bool) -> None:
        """The next backward pass is reduced, or is in `no_sync`."""
        self._next = Next.REDUCED if reduced else Next.REDUCED_LATER

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if self._next is Next.OWN:
            self._added = True
        elif self._next is Next.REDUCED_LATER:
            self._waits = True
        elif not self._ends:
            self._ends = True
            Variable._execution_engine.queue_callback(self._reduced)

    def _reduced(self) -> None:
        """A reduced backward pass has ended, and its reduction took what waited along."""
        self._next, self._ends, self._waits = Next.OWN, False, False

    def reduce(self) -> None:
        """Put the mean over all workers into `.grad`. What nobody has a gradient of is left without."""
        self._added = self._waits = False
        own = [one.grad is not None for one in self._parameters]
        had = torch.tensor(own, dtype=torch.float32, device=self._parameters[0].device)
        dist.all_reduce(had)
        workers = dist.get_world_size()
        for one, anybody in zip(self._parameters, had.tolist(), strict=True):
            if anybody:
                gradient = torch.zeros_like(one) if one.grad is None else one.grad
                dist.all_reduce(gradient.div_(workers))
                one.grad = gradient
