"""Replicas whose gradients travel packed.

Gradients lie in memory of the worker's own, as else in its slot, and are packed from there into the slot. What the packing leaves
out is added to the next (`plesio.strategy.answers.Gradient`).

| what becomes of the contribution        | and of what was left out                                             |
| --------------------------------------- | -------------------------------------------------------------------- |
| it counts                               | is kept for the next                                                 |
| it holds a NaN, and is not packed       | stays                                                                |
| it comes too late                       | what earlier packings left out is given back                         |
| a parameter has no gradient in it       | of that parameter it stays                                           |
| its process dies                        | is lost, as what it had not sent; what it had sent counts            |
"""

from __future__ import annotations

from typing import Any

import torch

from plesio.strategy import Strategy
from plesio.tensors.arena import CPU, Arena, flattened
from plesio.tensors.packing import Packing
from plesio.tensors.tensor_set import members_of
from plesio.worker.replicas.mean import MeanReplica
from plesio.worker.replicas.replica import GradientReplica, Replica


class PackingReplica(Replica):
    """Packs what another kind of replica would send."""

    def __init__(self, *given: Any, strategy: Strategy, **named: Any) -> None:
        self._send, self._late_ones = strategy.send, strategy.may_come_late
        super().__init__(*given, **named)

    def _get_ready(self) -> None:
        assert self._send.codec is not None, "it is packed"
        device = self.tensors[0].device
        self._packing = Packing(self.layout, self._send.codec).ready()
        if self._send.feeds_back:
            self._hold_left_out(self._packing.memory, self._late_ones)
        self._sent = Arena.private(self.layout, device)
        # with its place in `_left_out`, and what was there
        self._absent: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        self._late = self._late or device != CPU  # there, gradients stay where autograd put them, too
        super()._get_ready()

    @torch.no_grad()
    def fill_slot(self) -> bool:
        finite = super().fill_slot()
        if finite:  # else it does not count, and is not to be remembered
            self._pack()
        return finite

    def _pack(self) -> None:
        self._packs()
        places = self._left_out.views if self._left_out is not None else ()
        self._absent = [(one, places[one], places[one].clone()) for one in members_of(self.absent) if places]
        for _, left_out, _ in self._absent:
            left_out.zero_()
        self._packing.pack(self._sent, None, self.slot, self._left_out)
        for _, left_out, before in self._absent:
            left_out.add_(before)


class PackedGradientReplica(PackingReplica, GradientReplica):
    """Of gradients that the server steps by."""

    def _leave_out(self) -> frozenset[int]:
        lacking = super()._leave_out()
        for place in lacking:  # it is packed with the rest
            self._sent.flat[place].zero_()
        return lacking


class PackedMeanReplica(PackingReplica, MeanReplica):
    """Of gradients whose mean comes back."""

    def _take_mean(self, version: Arena) -> None:
        """What was packed of a tensor that nobody had a new gradient for did not count."""
        for index, left_out, before in self._absent:
            if flattened(version.views[index])[:1].isnan().any():
                left_out.copy_(before)
        super()._take_mean(version)

    def own(self) -> dict[str, torch.Tensor]:
        """A checkpoint keeps what all workers have alike."""
        return {}

    def take_up(self, own: dict[str, torch.Tensor]) -> None:
        """What was left out begins anew."""
