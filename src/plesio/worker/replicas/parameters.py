"""Replicas that own their parameters between exchanges: they send them, or how far they moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from plesio.strategy.answers import Codec
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.finite import are_finite
from plesio.tensors.mean import Accumulator
from plesio.tensors.packing import Packing
from plesio.tensors.rebasing import rebase
from plesio.tensors.tensor_set import members_of
from plesio.transport.ring import Shown
from plesio.worker.replicas.on_device import send
from plesio.worker.replicas.replica import Replica

CLIENTS = 1 << 10
"""Room for so many clients' sum, before it could overflow where their mean does not."""


class ParameterReplica(Replica):
    """This worker owns its parameters between exchanges and sends them. Of several clients it sends the mean.

    One that goes on while its answer travels (`late`) keeps a copy of what it began from. That is the last version, or while an
    answer travels what it sent.
    """

    _alpha = 1.0

    def _get_ready(self) -> None:
        self._on_device = not self.arena.memory.is_cpu
        self._start = Arena.private(self.layout) if self._late else self.ring.first.read
        self._clients: Accumulator | None = None
        self._weight = 0.0  # of what was added

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        super().adopt(shown)
        if self._late:
            self._start.copy_from(shown.read)
        else:
            self._start = shown.read
        self._weight = 0.0
        if self._clients is not None:
            self._clients.empty()

    def sent(self) -> None:
        self._start.copy_from(self.arena, Kind.TRAINED, part=self.part)
        self.missing = 0

    def rebase(self, shown: Shown[Arena]) -> None:
        """Buffers are the version's: what is counted in them since is no difference."""
        self.bring_back()
        self.writes.adopted(shown.made)
        version = shown.read.of_kind(Kind.TRAINED, part=self.part)
        for (mine, start), theirs in zip(self._pairs(), version, strict=True):
            rebase(mine, start, theirs, self._alpha)
        self.arena.copy_from(shown.read, Kind.BUFFER)

    def begin_client(self) -> None:
        """Parameters and buffers are those of the version again."""
        self.arena.copy_from(self._start, Kind.TRAINED, Kind.BUFFER)

    def add_client(self, weight: float, clip: float | None, said: Callable[[Arena], object] | None = None) -> bool:
        """Keep how far a client moved the parameters, `clip` at most, as `said` makes it; whether it is finite and counts."""
        self.check()
        if not are_finite(self.arena.of_kind(Kind.TRAINED)):
            return False
        for mine, start in self._pairs():
            mine.sub_(start.to(mine.device))
        if clip is not None:
            moved = self.arena.of_kind(Kind.TRAINED)
            norm = float(
                torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(one.double()) for one in moved]))
            )
            for mine in moved if norm > clip else ():
                mine.mul_(clip / norm)
        if said is not None:
            said(self.arena)
        if self._clients is None:
            self._clients = Accumulator(Arena.private(self.layout, self.tensors[0].device), CLIENTS)
        self._clients.add(self.arena, weight)
        self._weight += weight
        return True

    def take_clients(self, total: float | None) -> None:
        """Parameters and buffers are the mean of the clients'; or their sum divided by `total`."""
        self.begin_client()
        if not self._weight or self._clients is None:
            return
        mean = self._clients.take_mean(total or self._weight)
        self._weight = 0.0
        for mine, moved in zip(self.arena.of_kind(Kind.TRAINED), mean.of_kind(Kind.TRAINED), strict=True):
            mine.add_(moved)
        self.arena.copy_from(mean, Kind.BUFFER)

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each trained tensor of the part, and what it began from."""
        mine, start = (arena.of_kind(Kind.TRAINED, part=self.part) for arena in (self.arena, self._start))
        return zip(mine, start, strict=True)

    def pull_back(self, strength: float) -> None:
        """Add to each gradient so much of how far its parameter is from where it began."""
        for index, tensor in enumerate(self.tensors):
            if index in self._turn and tensor.grad is not None:
                start = self._start.views[index].to(tensor.device, non_blocking=True)
                if tensor.grad.is_sparse:  # rows that got none are pulled, too
                    tensor.grad = tensor.grad.to_dense()
                tensor.grad.add_(tensor.detach() - start, alpha=strength)

    def fill_slot(self) -> bool:
        """Bring parameters and buffers into the slot; whether they are finite."""
        self.check()
        if self._on_device:
            return send(self._copies, self._sent, self.arena, None, self.finite)
        self._sent.copy_from(self.arena, Kind.TRAINED, Kind.BUFFER)
        return self._is_finite()


class BlendingReplica(ParameterReplica):
    """Its parameters move `alpha` of the way to each version."""

    def __init__(self, *given: Any, alpha: float) -> None:
        super().__init__(*given)
        self._alpha = alpha

    def own(self) -> dict[str, torch.Tensor]:
        return {"parameters": self.arena.memory}

    def take_up(self, own: dict[str, torch.Tensor]) -> None:
        self.arena.memory.copy_(own["parameters"])

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        if anew:
            super().adopt(shown)
            return
        mine = [one.clone() for one in self.arena.of_kind(Kind.TRAINED)]
        super().adopt(shown)
        for own, theirs in zip(mine, self.arena.of_kind(Kind.TRAINED), strict=True):
            torch.lerp(own, theirs, self._alpha, out=theirs)


class DeltaReplica(ParameterReplica):
    """This worker owns its parameters between exchanges, and sends how far they moved from the version that it pins; packed, with
    a `codec`, and with `feedback` of what the packing left out."""

    def __init__(
        self, *given: Any, codec: Codec | None, feedback: bool, private: bool, may_come_late: bool = False
    ) -> None:
        super().__init__(*given)
        self._private = private  # then not even that a tensor had no gradient is told
        self._packing = Packing(self.layout, codec).ready() if codec is not None else None
        if self._packing is not None and feedback:
            self._hold_left_out(self._packing.memory, may_come_late)

    def fill_slot(self) -> bool:
        """Bring the difference and the buffers into the slot; whether they are finite. What never had a gradient is absent."""
        self.check()
        start, part, outside = self._start, self.part, self.layout.outside(self.part)
        unmoved = () if self._private else [index for index in self._trained if self._unmoved(index)]
        self.absent = outside | sum(1 << index for index in unmoved)
        if self._packing is not None:
            finite = self.stepped_finite() and are_finite(self.arena.of_kind(Kind.TRAINED, part=part))
            if finite:  # else it does not count, and is not to be remembered
                self._packs()
                self._packing.pack(start, self.arena, self._sent, self._left_out, part)
            return finite
        if self._on_device:
            return send(self._copies, self._sent, self.arena, start, self.finite, part)
        self._sent.copy_from(self.arena, Kind.TRAINED, Kind.BUFFER, part=part)
        both = (arena.of_kind(Kind.TRAINED, part=part) for arena in (self._sent, start))
        for sent, before in zip(*both, strict=True):
            torch.sub(before, sent, out=sent)
        return self._is_finite(self.layout.lacking(outside))

    def _unmoved(self, index: int) -> bool:
        """Whether there is nothing to send of a tensor: no gradient, and nothing that packing left out before."""
        left_out = self._left_out
        return index not in self._had and (left_out is None or not bool(left_out.views[index].any()))

    def note_gradients(self) -> None:
        if len(self._had) < len(self._trained):
            self._had.update(index for index in self._turn if self.tensors[index].grad is not None)

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        super().adopt(shown)
        self._had: set[int] = set()

    def sent(self) -> None:
        super().sent()
        self._had = self._had_outside(self.part)

    def _had_outside(self, part: int) -> set[int]:
        """The tensors of other parts that had a gradient since these were exchanged."""
        return self._had.intersection(members_of(self.layout.outside(part)))
