"""The master copy: parameters of half precision as the server steps them, in float32.

bfloat16 has 8 bits of mantissa: w - lr g is w again where the step is smaller than 2^-9 of w. So a fold steps a copy in float32,
with what came in float32, and publishes it rounded:

| where                            | dtype       |
| -------------------------------- | ----------- |
| a worker's model, slots, ring    | the model's |
| what is held, the mean, the step | float32     |
| the optimizer's state            | float32     |

Slots and ring, and what travels, are as large as before. What rounding takes off a version stays in the master copy: it is not
lost, and is published when it has become a step of the model's dtype. Where workers step by themselves there is none.
"""

from __future__ import annotations

from typing import Any

import torch

from plesio.memory.gather import Came, NewArena
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.tensors.arena import HALF, Arena, Kind, Layout
from plesio.tensors.carrying import Kept
from plesio.tensors.mean import mean_into
from plesio.tensors.operands import pieces
from plesio.tensors.rows import copy_rows


def state_layout(strategy: Strategy, layout: Layout) -> Layout:
    """The layout of what the server keeps of a model of this one. Another one: there is a master copy."""
    return layout if strategy.gives_back_mean else layout.wide


class Master:
    """The parameters in float32, which begin as the current one of `versions`.

    Args:
        averages: in rounds the mean of the workers' parameters is the next version: what rounding took off the one that they
            began from is added.
    """

    def __init__(self, versions: Versions, new_arena: NewArena, averages: bool) -> None:
        self.weights = new_arena("master copy")
        self._mean = new_arena("mean contribution")
        self._versions = versions
        self._averages = averages
        current = versions.buffers[versions.current]
        for weights, shown in zip(self.weights.flat, current.flat, strict=True):
            weights.copy_(shown)
        half = [
            (place, spec.kind)
            for place, spec in enumerate(current.layout.segments)
            if current.flat[place].dtype in HALF
        ]
        self._trained = [place for place, kind in half if kind is Kind.TRAINED]

    def widened(self, came: Came) -> Came:
        """What came, as one contribution in float32."""
        if came.slots[0].layout is not self.weights.layout:
            mean_into(self._mean, came.slots, came.shares, absent=came.absent)
            came = came._replace(slots=[self._mean], shares=[1.0])
        if self._averages:
            self._add_rest(came.slots[0])
        return came

    def _add_rest(self, mean: Arena) -> None:
        current = self._versions.buffers[self._versions.current]
        for place in self._trained:
            for to, exact, rounded in pieces(mean.flat[place], self.weights.flat[place], current.flat[place]):
                to.add_(exact - rounded)

    def show(self, version: Arena, came: Came) -> None:
        """Round it into `version`; of tables, the rows that `came`."""
        for place in version.layout.moving_segments:
            version.flat[place].copy_(self.weights.flat[place])
        for tensor, gradient in came.rows.items():
            table, exact = version.views[tensor], self.weights.views[tensor]
            rows = gradient._indices()[0] if gradient.is_sparse else torch.arange(len(table))
            copy_rows(table, exact, rows)

    def kept(self) -> Kept:
        """By tensor: a checkpoint's parameters are rounded."""
        specs = enumerate(self._versions.buffers[0].layout.specs)
        half = [place for place, spec in specs if spec.kind.moves and spec.torch_dtype in HALF]
        return Kept({f"master {place}": self.weights.views[place] for place in half}, {})

    def restore(self, numbers: dict[str, Any]) -> None:
        """Go on; the tensors of `kept` are to be filled."""
