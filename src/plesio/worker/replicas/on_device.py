"""What a replica does otherwise where its model is on a device of its own, such as a GPU.

Parameters and buffers lie in an arena there. Gradients have none: they go straight from `.grad` into the slot. What is sent is
tested on the device, and the host waits once, for the copies and the test.
"""

from __future__ import annotations

import torch

from plesio.tensors.arena import ALL_PARTS, Arena, Kind
from plesio.tensors.finite import finite_flag
from plesio.worker.guards.inventory import refuse_changed
from plesio.worker.replicas.copies import Copies
from plesio.worker.replicas.early import EarlyCopies, sum_of_bits
from plesio.worker.replicas.replica import GradientReplica

PIECE = 1 << 24
"""Elements of a difference that the device computes at once: as many it needs room for."""


def send(
    copies: Copies, slot: Arena, mine: Arena, start: Arena | None, steps: torch.Tensor | None, part: int = ALL_PARTS
) -> bool:
    """Bring parameters and buffers into the slot, or with `start` how far the parameters moved from there; whether these are
    finite, and the `steps` that led there (a flag on the device)."""
    finite = [] if steps is None else [steps]
    with copies.behind():
        flats = [arena.of_kind(Kind.TRAINED, part=part) for arena in (slot, mine, start or mine)]
        for all_of_it in zip(*flats, strict=True):
            for at in range(0, len(all_of_it[0]), PIECE):
                to, now, before = (flat[at : at + PIECE] for flat in all_of_it)
                if start is not None:
                    now = torch.sub(before.to(now.device, non_blocking=True), now)
                finite.append(finite_flag([now]))
                copies.put(to, now)
        for to, now in zip(slot.of_kind(Kind.BUFFER), mine.of_kind(Kind.BUFFER), strict=True):
            copies.put(to, now)
        flags = [torch.stack(finite).all()] if finite else []
    return all(copies.wait(*flags))


class DeviceGradientReplica(GradientReplica):
    """Sends gradients from a device; those of large parameters are copied while the backward pass goes on."""

    def _get_ready(self) -> None:
        super()._get_ready()
        places = {index: self._sent.views[index] for index, _, _ in self._contributed}
        early = {} if self._late else {index: tensor for index, tensor, _ in self._contributed}
        self._early = EarlyCopies(self._copies, early, places)

    @torch.no_grad()
    def fill_slot(self) -> bool:
        self.missing = self.absent = 0
        self.rows = ()
        self.bring_back()
        there: dict[int, torch.Tensor] = {}
        for index, tensor, _ in self._contributed:
            if tensor.data_ptr() != self._addresses[index]:
                refuse_changed(self.layout.specs[index], tensor)
            gradient = tensor.grad if index in self._turn else None
            if gradient is None:
                self.missing += index in self._turn
                self.absent |= 1 << index
            else:
                there[index] = gradient.to_dense() if gradient.is_sparse else gradient
        finite = self._copy(there)
        if self.absent:
            self._leave_out()  # now, for what was copied of them early is overwritten
        return self._put_rows() and finite

    def close(self) -> None:
        self._early.close()
        super().close()

    def _copy(self, gradients: dict[int, torch.Tensor]) -> bool:
        """Bring gradients and buffers into the slot; whether the gradients are finite."""
        early = self._early.take(gradients)
        with self._copies.behind():
            for index, gradient in gradients.items():
                if index not in early:
                    self._copies.put(self._sent.views[index], gradient)
            for sent, mine in self._buffers:
                self._copies.put(sent, mine)
        finite = [finite_flag(list(gradients.values()))] if gradients else []
        now = [sum_of_bits(gradients[index]) for index in early]
        same = [(torch.stack(now) == torch.stack(list(early.values()))).all()] if early else []
        answers = self._copies.wait(*finite, *same)
        early_count = all(answers[1:])
        if not early_count:
            with self._copies.behind():
                for index in early:
                    self._copies.put(self._sent.views[index], gradients[index])
            self._copies.wait()
        self._early.judge(len(early) if early_count else 0)
        return all(answers[:1])
