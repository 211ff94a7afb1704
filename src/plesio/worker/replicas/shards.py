"""Replicas of a rank of an island: its model stays where torch has put it, and the rank copies what it holds.

FSDP2 gathers a layer from flat shards of its own, so a parameter cannot be given other memory. Each exchange copies tensor by
tensor: from the local parts into the rank's part of the worker's slot, and from the version into the local parts. There is no
copy of the model beside it, and what local steps began from is read where the version lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from plesio.errors import CheckpointError
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena, Kind, Layout
from plesio.tensors.finite import are_finite, finite_flag
from plesio.tensors.local import is_split, local_of, split_like
from plesio.transport.ring import Ring, Shown
from plesio.worker.guards.inventory import refuse_changed
from plesio.worker.replicas.regions import RankShare
from plesio.worker.replicas.replica import Replica

PROBED = 2  # the first contributions
PROBED_MAX = 10_000  # elements of a tensor


class LocalViews(NamedTuple):
    """What a rank has of an arena, by tensor."""

    views: list[torch.Tensor]


class Shards:
    """The local parts of a model's `tensors`, of which a rank holds and sends what `held` says; `leader`: it is the first one."""

    def __init__(self, tensors: Sequence[torch.Tensor], held: Sequence[RankShare], leader: bool) -> None:
        self.leader = leader
        self.tensors = tuple(tensors)
        self.local = list(map(local_of, tensors))
        self.held = held
        self.region_numbers = torch.tensor([n for one in held for n in (*one.holds.start, *one.holds.shape)])
        self._inner = [one.sends.within(one.holds) for one in held]
        self._parts: dict[int, tuple[Arena, LocalViews]] = {}  # an arena is kept so that no other gets its identity

    def holds(self, arena: Arena) -> LocalViews:
        """What the rank holds of the tensors in `arena`."""
        known = self._parts.get(id(arena))
        if known is None:
            views = [one.holds.of(view) for one, view in zip(self.held, arena.views, strict=True)]
            known = self._parts[id(arena)] = arena, LocalViews(views)
        return known[1]

    def sends(self, index: int, local: torch.Tensor) -> torch.Tensor:
        """What the rank sends of tensor `index`, of which it holds `local`."""
        return self._inner[index].of(local)

    def has(self, index: int) -> bool:
        """Whether the rank sends anything of it."""
        return self.held[index].sends.numel > 0

    def taken(self, index: int, whole: torch.Tensor) -> torch.Tensor:
        """A copy of what the rank holds of a whole tensor like the model's `index`-th, split as that is."""
        return split_like(self.tensors[index], self.held[index].holds.of(whole).clone())

    def alike(self, index: int) -> bool:
        """Whether every rank holds the same of it."""
        return self.held[index].all

    def bring(self, index: int, whole: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy what the rank sends of a tensor like the model's `index`-th into the whole one."""
        if self.has(index):
            self.held[index].sends.of(whole).copy_(self.sends(index, local_of(tensor)))


class ShardReplica(Replica):
    """What all of them do. `leader`: this rank also sends the buffers, which are not the same on ranks with other data."""

    copies = ()

    def __init__(
        self,
        layout: Layout,
        model: nn.Module,
        tensors: Sequence[torch.Tensor],
        ring: Ring[Arena],
        slot: Arena,
        shards: Shards,
        leader: bool,
    ) -> None:
        self._shards = shards
        super().__init__(layout, model, tensors, ring, slot)
        self._slot = shards.holds(slot)
        self._here = shards.local[0].is_cpu
        self._start = shards.holds(ring.first.read)
        sent = [index for index in self._trained if shards.has(index)]
        self._sending = {index: shards.sends(index, self._slot.views[index]) for index in sent}
        kinds = [spec.kind for spec in layout.specs]
        self._buffers = [index for index, kind in enumerate(kinds) if kind is Kind.BUFFER and leader]
        self._frozen = [index for index, kind in enumerate(kinds) if kind is Kind.FROZEN]
        self._following = [index for index, kind in enumerate(kinds) if kind is not Kind.FROZEN]
        self._begun = False
        self._alike = [index for index in self._trained if shards.alike(index)]
        self._to_probe, self._probes = PROBED, [0.0] * len(self._alike)

    def _addresses_now(self) -> list[int]:
        return [local_of(one).data_ptr() for one in self.tensors]

    def check(self) -> None:
        self.bring_back()
        for index, (tensor, local) in enumerate(zip(self.tensors, self._shards.local, strict=True)):
            now = local_of(tensor)
            if now.data_ptr() != local.data_ptr() or now.shape != local.shape:
                refuse_changed(self.layout.specs[index], tensor)

    @torch.no_grad()
    def check_gradients(self, later: bool = False) -> bool:
        """As `Replica.check_gradients`, of this rank's part. Where tensors lie is checked at exchanges."""
        self.bring_back()
        self.note_gradients()
        gradients = [one.grad for one in self._stepping if one.grad is not None]
        self.missing += len(self._stepping) - len(gradients)
        return self._test([one.to_local() if is_split(one) else one for one in gradients], later)  # type: ignore[attr-defined]

    def fill_slot(self) -> bool:
        """Bring this rank's part of the contribution into the slot; whether that is finite."""
        self.check()
        if self._to_probe:
            self._to_probe -= 1
            self._probes = self._probed()  # before: the slot of a rank on another host is where the version lies
        with self._copies.behind():
            sent = self._fill()
            for index in self._buffers:
                self._copies.put(self._slot.views[index], self._shards.local[index])
            if self._here:
                return are_finite(sent)
            flag = finite_flag(sent or self._shards.local[:1])
        return all(self._copies.wait(flag, *(() if self.finite is None else (self.finite,))))

    def own(self) -> dict[str, torch.Tensor]:
        return {"holds": self._shards.region_numbers}

    def take_up(self, own: dict[str, torch.Tensor]) -> None:
        if "holds" in own and not torch.equal(own["holds"], self._shards.region_numbers):
            raise CheckpointError(
                "the ranks of this worker held other parts of its model when the run was interrupted: split it as it was split, "
                "or leave its optimizer's state behind by another number of ranks"
            )

    def _fill(self) -> list[torch.Tensor]:
        """Bring what this rank sends of the trained tensors into the slot, or have it copied there; what that is."""
        raise NotImplementedError

    def probes(self) -> list[float]:
        """A number of each trained tensor that all ranks hold: of how it is to move, as far as this rank knows. Of the first
        contributions."""
        return self._probes

    def _probed(self) -> list[float]:
        moves = map(self._moves, self._alike)
        return [0.0 if one is None else _weighed(one) for one in moves]

    def _moves(self, index: int) -> torch.Tensor | None:
        """How a tensor moved, or its gradient."""
        return self._shards.local[index] - self._start.views[index].to(self._shards.local[index].device)

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        """Go on from this rank's part of the version."""
        self.bring_back()
        self._start = self._shards.holds(shown.read)
        with self._copies.bringing():
            for index in self._following if self._begun else range(len(self.tensors)):
                self._shards.local[index].copy_(self._start.views[index], non_blocking=True)
        self._begun = True
        self.writes.adopted(self._shards.holds(shown.made))
        self.missing = 0


class GradientShards(ShardReplica):
    """Sends its part of the gradient."""

    def _fill(self) -> list[torch.Tensor]:
        self.missing = self.absent = 0
        sent = []
        for index in self._trained:
            tensor = self.tensors[index]
            gradient = tensor.grad if index in self._turn else None
            if gradient is None:
                self.missing += index in self._turn
                self.absent |= 1 << index
            place = self._sending.get(index)
            if place is None:
                continue
            if gradient is None:
                place.zero_()  # a fold may have written there
            else:
                sent.append(self._shards.sends(index, self._placed(gradient, tensor)))
                self._copies.put(place, sent[-1])
        return sent

    def _moves(self, index: int) -> torch.Tensor | None:
        gradient = self.tensors[index].grad
        return None if gradient is None else self._placed(gradient, self.tensors[index])

    @staticmethod
    def _placed(gradient: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The local part of a gradient, as its parameter is split."""
        if is_split(gradient) and gradient.placements != tensor.placements:  # type: ignore[attr-defined]
            gradient = gradient.redistribute(placements=tensor.placements)  # type: ignore[attr-defined]
        gradient = local_of(gradient)
        return gradient.to_dense() if gradient.is_sparse else gradient


def _weighed(tensor: torch.Tensor) -> float:
    """A sum of elements by uneven weights: a plain one is 0 of the gradients of some layers."""
    flat = tensor.flatten()[:PROBED_MAX].double()
    return float((flat * (torch.arange(len(flat), device=flat.device) % 7 + 1)).sum())


class ParameterShards(ShardReplica):
    """Sends its part of the parameters."""

    def _fill(self) -> list[torch.Tensor]:
        sent = [self._shards.sends(index, self._shards.local[index]) for index in self._sending]
        for place, one in zip(self._sending.values(), sent, strict=True):
            self._copies.put(place, one)
        return sent


class ShownParameters(ParameterShards):
    """Sends its part of the parameters, and goes on from where it is: the version is what it sent."""

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        if anew or not self._begun:
            super().adopt(shown)
            return
        self._start = self._shards.holds(shown.read)
        self.writes.adopted(self._shards.holds(shown.made))
        self.missing = 0


class DeltaShards(ShardReplica):
    """Sends how far its part of the parameters moved from the version. What never had a gradient is absent."""

    def note_gradients(self) -> None:
        self._had.update(index for index in self._turn if self.tensors[index].grad is not None)

    def _fill(self) -> list[torch.Tensor]:
        self.absent = sum(1 << index for index in self._trained if index not in self._had)
        sent = []
        for index, place in self._sending.items():
            now, start = (self._shards.sends(index, one[index]) for one in (self._shards.local, self._start.views))
            if self._here:
                sent.append(torch.sub(start, now, out=place))
            else:
                sent.append(start.to(now.device, non_blocking=True) - now)
                self._copies.put(place, sent[-1])
        return sent

    def adopt(self, shown: Shown[Arena], anew: bool = True) -> None:
        super().adopt(shown)
        self._had: set[int] = set()


def shards_for(strategy: Strategy) -> Callable[..., ShardReplica]:
    """The class of a rank's replica."""
    if strategy.every.among_ranks:
        return ShownParameters
    if strategy.send.differs:
        return DeltaShards
    return ParameterShards if strategy.send.stepped else GradientShards
