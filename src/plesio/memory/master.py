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

import torch

from plesio.memory.gather import Came
from plesio.memory.publish import Versions
from plesio.memory.register import Register
from plesio.strategy import Strategy
from plesio.tensors.arena import HALF, Arena, Kind, Layout
from plesio.tensors.carrying import Kept, Part
from plesio.tensors.mean import mean_into
from plesio.tensors.operands import pieces
from plesio.tensors.rows import copy_rows


def state_layout(strategy: Strategy, layout: Layout) -> Layout:
    """The layout of what the server keeps of a model of this one. Another one: there is a master copy."""
    return layout if strategy.gives_back_mean else layout.wide


class Master(Part):
    """The parameters in float32, which begin as the current one of `versions`.

    Args:
        averages: in rounds the mean of the workers' parameters is the next version: what rounding took off the one that they
            began from is added.
        looks_back: contributions are corrected by how far the version moved that they were computed from.
    """

    like = ""

    def __init__(self, versions: Versions, state: Register, averages: bool, looks_back: bool) -> None:
        self.weights = self._first = self._other = self._next = state.new("master copy")
        self._mean = state.new("mean contribution")
        self._then = state.new("version worked on") if looks_back else None
        state.parts["master"] = self
        self._versions = versions
        self._averages = averages
        for weights, shown in zip(self.weights.flat, self._shown.flat, strict=True):
            weights.copy_(shown)
        segments = enumerate(versions.buffers[0].layout.segments)
        self._trained = [place for place, one in segments if one.kind is Kind.TRAINED]

    def widened(self, came: Came) -> Came:
        """What came, as one contribution in float32."""
        if came.slots[0].layout is not self.weights.layout:
            mean_into(self._mean, came.slots, came.shares, absent=came.absent)
            came = came._replace(slots=[self._mean], shares=[1.0])
        if self._averages:
            (mean,), shown = came.slots, self._shown
            for place in self._trained:
                for to, exact, rounded in pieces(mean.flat[place], self.weights.flat[place], shown.flat[place]):
                    to.add_(exact - rounded)
        return came if came.then is None else came._replace(then=self.behind(came.then))

    def behind(self, then: Arena) -> Arena:
        """What the master copy has moved from as far as the published version has from `then`: where nothing moved, no gap."""
        assert self._then is not None, "contributions are corrected"
        for place in self._trained:
            both = pieces(self._then.flat[place], self.weights.flat[place], then.flat[place], self._shown.flat[place])
            for to, exact, old, new in both:
                torch.sub(exact, new, out=to).add_(old)  # to the bit where old is new
        return self._then

    @property
    def _shown(self) -> Arena:
        return self._versions.buffers[self._versions.current]

    def survive(self, state: Register) -> None:
        """What it was before a fold is to outlive this process."""
        self._other = state.new("second copy")
        self._other.copy_from(self.weights)  # what is frozen stays there, too

    def stays(self) -> None:
        """What it is now stays as it is in the fold that comes."""
        self._next = self._other

    def next(self) -> Arena:
        """Where the next one goes."""
        return self._next

    def made(self, weights: Arena) -> None:
        """It is there."""
        if weights is not self.weights:
            self._other = self.weights
        self.weights = self._next = weights

    def show(self, version: Arena, came: Came) -> None:
        """Round it into `version`; of tables, the rows that `came`."""
        for place in version.layout.moving_segments:
            version.flat[place].copy_(self.weights.flat[place])
        for tensor, gradient in came.rows.items():
            table, exact = version.views[tensor], self.weights.views[tensor]
            rows = gradient._indices()[0] if gradient.is_sparse else torch.arange(len(table))
            copy_rows(table, exact, rows)

    def numbers(self) -> bool:
        return self.weights is not self._first

    def take(self, numbers: bool) -> None:
        if numbers != self.numbers():
            self.made(self._other)

    def kept(self) -> Kept:
        """By tensor: a checkpoint's parameters are rounded."""
        specs = enumerate(self._versions.buffers[0].layout.specs)
        half = [place for place, spec in specs if spec.kind.moves and spec.torch_dtype in HALF]
        return Kept({f"master {place}": self.weights.views[place] for place in half}, {})
