"""The first part of a fold: what came, as it is stepped with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

import torch

from plesio.core.events import Fold
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena
from plesio.tensors.mean import Accumulator, mean_into
from plesio.tensors.noise import Noise
from plesio.tensors.packing import Packing
from plesio.tensors.rows import NO_ROWS, Rows, Tables
from plesio.tensors.tensor_set import ALL

NewArena = Callable[[str], Arena]
"""Makes a zeroed arena for what its argument names."""


class Came(NamedTuple):
    """What one step is made with: the mean, by `shares`, of what lies in `slots`, which are free afterwards.

    Attributes:
        worker: of several, the first; with its settings.
        scale: of the learning rate, where all is folded by `folded` workers.
        absent: tensors that nobody has a gradient for: they are left alone, as torch leaves them.
        rows: the mean gradients of tables.
        then: the version that it was computed from, where that matters and is known.
    """

    worker: int
    slots: Sequence[Arena]
    shares: Sequence[float]
    scale: float
    folded: int
    absent: int
    rows: Mapping[int, torch.Tensor]
    then: Arena | None

    def mean(self) -> Arena:
        """The mean, in the first slot."""
        if len(self.slots) > 1:
            mean_into(self.slots[0], self.slots, self.shares, absent=self.absent)
        return self.slots[0]


def held_by(strategy: Strategy) -> int:
    """How many contributions are held for a fold after their workers went on; 0 where each is folded, or waits."""
    together = int(strategy.gather.size(None))
    return together if together > 1 and not strategy.release.after_fold else 0


class Gather:
    """What came with the contributions in the slots; `of` tells what to step with."""

    def __init__(self, versions: Versions, slots: Sequence[Arena]) -> None:
        self._versions = versions
        self._slots = slots
        self._absent: dict[int, int] = {}  # by worker: tensors without a gradient in what lies in its slot
        self.tables = Tables.of(versions.buffers)

    def came(self, worker: int, absent: int, rows: tuple[Rows, ...] = ()) -> None:
        """In what lies in `worker`'s slot these tensors have no gradient, and of tables these rows have one."""
        self._absent[worker] = absent
        if self.tables is not None:
            self.tables.came(worker, rows)

    def hold(self, worker: int, weight: float) -> None:
        """Keep a contribution until the fold: its slot is free again, and its worker goes on."""
        raise NotImplementedError

    def of(self, fold: Fold) -> Iterable[Came]:
        """What to step with, one after the other."""
        raise NotImplementedError

    def begin_anew(self) -> None:
        """As after a restore: nothing is held."""
        if self.tables is not None:
            self.tables.begin_anew()


class AllAtOnce(Gather):
    """All of a fold as one: out of the slots, or of the buffer that contributions are added to while their workers go on."""

    def __init__(
        self,
        strategy: Strategy,
        versions: Versions,
        slots: Sequence[Arena],
        looks_back: bool,
        new_arena: NewArena,
    ) -> None:
        super().__init__(versions, slots)
        self._leaves_out = (not strategy.send.stepped and not strategy.gives_back_mean) or strategy.send.fragments > 1
        self._looks_back = looks_back
        self._held_absent = ALL  # of all that is in the buffer
        codec = strategy.send.codec
        self._packing = Packing(versions.buffers[0].layout, codec).ready() if codec is not None else None
        self._noise = Noise(strategy.send.privacy) if strategy.send.privacy is not None else None
        layout = versions.buffers[0].layout
        sums = self._packing is not None or (self._noise is not None and layout.wide is not layout)
        self._sum = new_arena("sum of deltas") if sums else None
        self._held = Accumulator(new_arena("buffer"), held_by(strategy)) if held_by(strategy) else None

    def hold(self, worker: int, weight: float) -> None:
        assert self._held is not None, "only a buffer that lets workers go on holds"
        slot = self._slots[worker]
        absent = self._absent.get(worker, 0) if self._leaves_out else 0
        if self._packing is not None and self._sum is not None:
            slot = self._packing.mean_into(self._sum, [slot], [1.0], absent)
        self._held.add(slot, weight, absent)
        if self.tables is not None:
            self.tables.hold(worker, self._slots[worker], weight)
        self._held_absent &= self._absent.get(worker, 0)

    def of(self, fold: Fold) -> Iterable[Came]:
        worker = fold.members[0].worker
        absent = self._absent_in(fold) if self._absent or fold.held else 0
        if len(fold.members) > 1 and self._absent and self._leaves_out and not fold.held:
            self._fill_up(fold, absent)
        slots, shares = self._parts(fold, absent)
        rows = self.tables.mean(self._rows_of(self.tables, fold)) if self.tables is not None else NO_ROWS
        then = self._versions.of(worker) if self._looks_back else None
        return (Came(worker, slots, shares, fold.scale, len(fold.members), absent, rows, then),)

    def _fill_up(self, fold: Fold, absent: int) -> None:
        """Segments that a worker left out, and not all did, are zeros: the slot holds there what was before."""
        layout = self._versions.buffers[0].layout
        for member in fold.members:
            for segment in layout.lacking(self._absent.get(member.worker, 0)) - layout.lacking(absent):
                self._slots[member.worker].flat[segment].zero_()

    def _parts(self, fold: Fold, absent: int) -> tuple[list[Arena], list[float]]:
        if fold.held:
            assert self._held is not None, "held contributions lie in the buffer"
            return [self._held.take_mean(fold.total_weight)], [1.0]
        if len(fold.members) == 1 and self._packing is None and self._noise is None:  # as most are
            return [self._slots[fold.members[0].worker]], [1.0]
        slots, shares = [self._slots[one.worker] for one in fold.members], [one.share for one in fold.members]
        if self._packing is not None and self._sum is not None:
            return [self._packing.mean_into(self._sum, slots, shares, absent)], [1.0]
        if self._noise is not None:
            mean = self._sum or slots[0]
            mean_into(mean, slots, shares)
            self._noise.add(mean, len(slots))
            return [mean], [1.0]
        return slots, shares

    def _absent_in(self, fold: Fold) -> int:
        if fold.held:
            absent, self._held_absent = self._held_absent, ALL
            return absent
        return reduce(and_, [self._absent.get(one.worker, 0) for one in fold.members])

    def _rows_of(self, tables: Tables, fold: Fold) -> list[tuple[float, dict[int, torch.Tensor]]]:
        """Of each contribution its share, and its gradients of tables."""
        if fold.held:
            return [(weight / fold.total_weight, one) for weight, one in tables.take_held()]
        alone = len(fold.members) == 1
        return [
            (1.0 if alone else one.share, tables.gradients_of(one.worker, self._slots[one.worker]))
            for one in fold.members
        ]

    def begin_anew(self) -> None:
        super().begin_anew()
        self._held_absent = ALL
        if self._held is not None:
            self._held.empty()


class InTurn(Gather):
    """Each contribution by itself, in order of arrival; `live` reads a version that is known. Held ones are kept one by one."""

    def __init__(
        self,
        versions: Versions,
        slots: Sequence[Arena],
        live: set[int],
        held: Sequence[Arena],
        damp: Callable[[Arena, Arena, int], None],
    ) -> None:
        super().__init__(versions, slots)
        self._live = live
        self._copies = held
        self._absent_of = [0] * len(held)
        self._waiting = 0
        self._damp = damp

    def hold(self, worker: int, weight: float) -> None:
        slot, absent, copy = self._slots[worker], self._absent.get(worker, 0), self._copies[self._waiting]
        mean_into(copy, [slot], [1.0], absent=absent)
        self._damp(copy, self._versions.of(worker), absent)
        if self.tables is not None:
            self.tables.hold(worker, slot, 1.0)
        self._absent_of[self._waiting] = absent
        self._waiting += 1

    def of(self, fold: Fold) -> Iterable[Came]:
        came = []
        held = self.tables.take_held() if self.tables is not None and fold.held else []
        for place, member in enumerate(fold.members):
            worker = member.worker
            gradient = self._copies[place] if fold.held else self._slots[worker]
            absent = self._absent_of[place] if fold.held else self._absent.get(worker, 0)
            rows: Mapping[int, torch.Tensor] = NO_ROWS
            if self.tables is not None:
                rows = held[place][1] if fold.held else self.tables.gradients_of(worker, gradient)
            known = not fold.held and worker in self._live  # what a departed worker had read is not
            then = self._versions.of(worker) if known else None
            came.append(Came(worker, [gradient], [1.0], fold.scale * member.share, 1, absent, rows, then))
        self._waiting = 0
        return came

    def begin_anew(self) -> None:
        super().begin_anew()
        self._waiting = 0
