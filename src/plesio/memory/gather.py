"""The first part of a fold: what came, as it is stepped with."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import torch

from plesio.core.events import Fold
from plesio.errors import ConfigurationError
from plesio.memory.publish import Versions
from plesio.memory.register import Register, When
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.carrying import Part
from plesio.tensors.combining import COMBINED
from plesio.tensors.mean import Accumulator, mean_into
from plesio.tensors.noise import Noise
from plesio.tensors.packing import Packing
from plesio.tensors.rows import NO_ROWS, RowCount, Tables
from plesio.tensors.tensor_set import ALL


class Came(NamedTuple):
    """What one step is made with: the mean, by `shares`, of what lies in `slots`, which are free afterwards.

    Attributes:
        worker: of several, the first; with its settings.
        scale: of the learning rate, where all is folded by `folded` workers.
        absent: tensors that nobody has a gradient for: they are left alone, as torch leaves them.
        rows: the mean gradients of tables.
        then: the version that it was computed from, where that matters and is known.
        scratch: where it may be changed, or what is made of it may be written, if the slots are to stay as they are.
    """

    worker: int
    slots: Sequence[Arena]
    shares: Sequence[float]
    scale: float
    folded: int
    absent: int
    rows: Mapping[int, torch.Tensor]
    then: Arena | None
    scratch: Arena | None = None

    def mean(self, segments: Sequence[int] | None = None) -> Arena:
        """The mean, of all segments or of these; of several it lies in the first slot, or in the scratch."""
        if len(self.slots) == 1:
            return self.slots[0]
        mean = self.scratch or self.slots[0]
        mean_into(mean, self.slots, self.shares, segments, absent=self.absent)
        return mean

    def own(self) -> Came:
        """With a gradient that may be changed."""
        if self.scratch is None:
            return self
        self.scratch.copy_from(self.slots[0], Kind.TRAINED, Kind.BUFFER)
        return self._replace(slots=[self.scratch])


def held_by(strategy: Strategy) -> int:
    """How many contributions are held for a fold after their workers went on; 0 where each is folded, or waits."""
    together = int(strategy.gather.size(None))
    return together if together > 1 and not strategy.release.after_fold else 0


class Gather(Part):
    """What came with the contributions in the slots; `of` tells what to step with.

    Attributes:
        known: the workers of which it matters which version they computed from, and is known.
        absent: by worker, the tensors without a gradient in what lies in its slot.
        plain: a contribution that is folded alone is stepped with as it lies there.
    """

    is_kept = False
    scratch: Arena | None = None
    """In place of a slot that would be changed."""

    def __init__(self, versions: Versions, slots: Sequence[Arena], known: Container[int]) -> None:
        self._versions = versions
        self.slots, self.known = slots, known
        self.absent: dict[int, int] = {}
        self.tables = Tables.of(versions.buffers)
        self.plain = self.tables is None
        self._packing: Packing | None = None

    def came(self, worker: int, absent: int, rows: tuple[RowCount, ...] = ()) -> None:
        """In what lies in `worker`'s slot these tensors have no gradient, and of tables these rows have one."""
        self.absent[worker] = absent
        if self.tables is not None:
            self.tables.came(worker, rows)

    def hold(self, worker: int, weight: float) -> None:
        """Keep a contribution until the fold: its slot is free again, and its worker goes on."""
        raise NotImplementedError

    def of(self, fold: Fold) -> Iterable[Came]:
        """What to step with, one after the other."""
        raise NotImplementedError

    def unpacks(self, strategy: Strategy) -> None:
        """What comes is packed, if the `strategy` has it so."""
        codec = strategy.send.codec
        if codec is not None:
            self._packing, self.plain = Packing(self._versions.buffers[0].layout, codec).ready(), False

    def survive(self, state: Register) -> None:
        """What it holds is to outlive this process, and slots are to stay as they are."""
        self.scratch = state.new("scratch")

    def absent_in(self, fold: Fold) -> int:
        """What of a fold of one step lacks a gradient."""
        return self.absent.get(fold.members[0].worker, 0)

    def stepping(self, fold: Fold) -> list[int]:
        """By whose settings `fold` steps, in turn."""
        return [member.worker for member in fold.members]

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
        known: Container[int],
        state: Register,
    ) -> None:
        super().__init__(versions, slots, known)
        self._leaves_out = (not strategy.send.stepped and not strategy.gives_back_mean) or strategy.send.fragments > 1
        self._held_absent = ALL  # of all that is in the buffer
        self.unpacks(strategy)
        self._noise = Noise(strategy.server_noise) if strategy.server_noise is not None else None
        self._strategy, combined = strategy, COMBINED[type(strategy.combine)]
        self._combined = combined(strategy.combine) if combined is not None else None
        layout, as_one = versions.buffers[0].layout, self._noise is not None or self._combined is not None
        self.plain = self.plain and not as_one
        sums = self._packing is not None or (as_one and layout.wide is not layout)
        self._sum = state.new("sum of contributions") if sums else None
        self._held: Accumulator | None = None
        if holds := held_by(strategy):
            self._held = Accumulator(state.array("buffer", When.HOLD), holds)
            state.parts["held"] = self

    def hold(self, worker: int, weight: float) -> None:
        assert self._held is not None, "only a buffer that lets workers go on holds"
        slot = self.slots[worker]
        absent = self.absent.get(worker, 0) if self._leaves_out else 0
        if self._packing is not None and self._sum is not None:
            slot = self._packing.mean_into(self._sum, [slot], [1.0], absent)
        self._held.add(slot, weight, absent)
        if self.tables is not None:
            self.tables.hold(worker, self.slots[worker], weight)
        self._held_absent &= self.absent.get(worker, 0)

    def of(self, fold: Fold) -> Iterable[Came]:
        worker = fold.members[0].worker
        absent = self.absent_in(fold) if self.absent or fold.held else 0
        self._held_absent = ALL if fold.held else self._held_absent
        if len(fold.members) > 1 and self.absent and self._leaves_out and not fold.held:
            self._fill_up(fold, absent)
        if self._strategy.outer.in_worker:
            self._take_first_buffers(fold)
        slots, shares = self._parts(fold, absent)
        rows = self.tables.mean(self._rows_of(self.tables, fold)) if self.tables is not None else NO_ROWS
        then = self._versions.of(worker) if worker in self.known else None
        return (Came(worker, slots, shares, fold.scale, len(fold.members), absent, rows, then, self.scratch),)

    def _take_first_buffers(self, fold: Fold) -> None:
        """The model's buffers are those of the lowest worker, as under DDP, whoever reduces: the mean of copies is the copy."""
        first, *others = (self.slots[member.worker] for member in fold.members)
        for slot in others if first.layout.buffer_segments else ():
            slot.copy_from(first, Kind.BUFFER)

    def _fill_up(self, fold: Fold, absent: int) -> None:
        """Segments that a worker left out, and not all did, are zeros: the slot holds there what was before."""
        layout = self._versions.buffers[0].layout
        for member in fold.members:
            for segment in layout.lacking(self.absent.get(member.worker, 0)) - layout.lacking(absent):
                self.slots[member.worker].flat[segment].zero_()

    def _parts(self, fold: Fold, absent: int) -> tuple[list[Arena], list[float]]:
        if fold.held:
            assert self._held is not None, "held contributions lie in the buffer"
            return [self._held.take_mean(fold.held)], [1.0]
        if self._combined is not None:
            self._check_enough(fold)
        slots, shares = [self.slots[one.worker] for one in fold.members], [one.share for one in fold.members]
        if self._packing is not None and self._sum is not None:
            return [self._packing.mean_into(self._sum, slots, shares, absent)], [1.0]
        one = self._sum or self.scratch or slots[0]
        if self._combined is not None:
            start = self._versions.buffers[self._versions.current] if self._strategy.send.differs else None
            self._combined(one, slots, absent, shares, start)
        elif self._noise is not None:
            mean_into(one, slots, shares)
            self._noise.add(one, len(slots))
        else:
            return slots, shares
        return [one], [1.0]

    def _check_enough(self, fold: Fold) -> None:
        least, came = self._strategy.combine.needs, [str(member.worker) for member in fold.members]
        if len(came) < least:
            raise ConfigurationError(
                f"version {fold.version}: {self._strategy.name} needs contributions of at least {least} workers in a round, and "
                f"this one has {len(came)}, of worker {', '.join(came)}; the others left, had no samples, or sent a NaN. Start "
                "more workers, so that some may be missing"
            )

    def absent_in(self, fold: Fold) -> int:
        if fold.held:
            return self._held_absent
        return reduce(and_, [self.absent.get(one.worker, 0) for one in fold.members])

    def _rows_of(self, tables: Tables, fold: Fold) -> list[tuple[float, dict[int, torch.Tensor]]]:
        """Of each contribution its share, and its gradients of tables."""
        if fold.held:
            return [(weight / fold.held, one) for weight, one in tables.take_held()]
        alone = len(fold.members) == 1
        return [
            (1.0 if alone else one.share, tables.gradients_of(one.worker, self.slots[one.worker]))
            for one in fold.members
        ]

    def survive(self, state: Register) -> None:
        super().survive(state)
        if self._held is not None and (sums := self._held.arena).layout.buffer_segments:
            beside = [state.array(what, When.HOLD) for what in ("first buffers", "equal buffers")]
            self._held = Accumulator(sums, self._held.count, beside)

    def stepping(self, fold: Fold) -> list[int]:
        return [fold.members[0].worker]

    def numbers(self) -> Any:
        return [_signed(self._held_absent), self._held.numbers() if self._held is not None else ()]

    def take(self, numbers: Any) -> None:
        self._held_absent = int.from_bytes(numbers[0], "little", signed=True)
        if self._held is not None:
            self._held.take(numbers[1])

    def begin_anew(self) -> None:
        super().begin_anew()
        self._held_absent = ALL
        if self._held is not None:
            self._held.empty()


class InTurn(Gather):
    """Each contribution by itself, in order of arrival; Held ones are kept one by one."""

    def __init__(
        self,
        versions: Versions,
        slots: Sequence[Arena],
        known: Container[int],
        strategy: Strategy,
        damp: Callable[[Arena, Arena, int], None],
        state: Register,
    ) -> None:
        super().__init__(versions, slots, known)
        self.unpacks(strategy)
        self._unpacked = state.new("contribution") if self._packing is not None else None
        holds = held_by(strategy)
        self._copies = [state.new("buffer") for _ in range(holds)]  # of which each is written as a whole
        self._absent_of = [0] * holds
        if holds:
            state.parts["held"] = self
        self._waiting = 0
        self._damp = damp

    def hold(self, worker: int, weight: float) -> None:
        slot, absent, copy = self.slots[worker], self.absent.get(worker, 0), self._copies[self._waiting]
        if self._packing is not None:
            self._packing.mean_into(copy, [slot], [1.0], absent)
        else:
            mean_into(copy, [slot], [1.0], absent=absent)
        self._damp(copy, self._versions.of(worker), absent)
        if self.tables is not None:
            self.tables.hold(worker, slot, 1.0)
        self._absent_of[self._waiting] = absent
        self._waiting += 1

    def of(self, fold: Fold) -> Iterable[Came]:
        held = self.tables.take_held() if self.tables is not None and fold.held else []
        for place, member in enumerate(fold.members):  # each is unpacked when its turn comes
            worker = member.worker
            gradient = self._copies[place] if fold.held else self.slots[worker]
            absent = self._absent_of[place] if fold.held else self.absent.get(worker, 0)
            rows: Mapping[int, torch.Tensor] = NO_ROWS
            if self.tables is not None:
                rows = held[place][1] if fold.held else self.tables.gradients_of(worker, gradient)
            if self._packing is not None and self._unpacked is not None and not fold.held:
                gradient = self._packing.mean_into(self._unpacked, [gradient], [1.0], absent)
            known = not fold.held and worker in self.known  # what a departed worker had read is not
            then = self._versions.of(worker) if known else None
            scale = fold.scale * member.share
            yield Came(worker, [gradient], [1.0], scale, 1, absent, rows, then, self.scratch)
        self._waiting = 0

    def absent_in(self, fold: Fold) -> int:
        return self._absent_of[0] if fold.held else super().absent_in(fold)

    def numbers(self) -> Any:
        return [self._waiting, [_signed(one) for one in self._absent_of]]

    def take(self, numbers: Any) -> None:
        self._waiting, absent = numbers
        self._absent_of = [int.from_bytes(one, "little", signed=True) for one in absent]

    def begin_anew(self) -> None:
        super().begin_anew()
        self._waiting = 0


def _signed(tensors: int) -> bytes:
    """A set of tensors, which may be `ALL`."""
    return tensors.to_bytes(tensors.bit_length() // 8 + 1, "little", signed=True)
