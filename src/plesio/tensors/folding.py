"""What the server does with tensors: fold contributions into a new version, and publish it to readers.

`Folding` writes each version into a buffer of the ring that nobody reads, and publishes that buffer itself. Where a round has
everybody who reads the current one, and a pass goes over the model line by line, it is that buffer itself: a fifth faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import nan
from operator import and_
from typing import Any

import torch

from plesio.core.events import Fold
from plesio.strategy import Strategy
from plesio.strategy.answers import DelayCompensated, GapAware, Plain, WorkerMomentum
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.carrying import Carried
from plesio.tensors.corrections import Correction, DelayCompensation, GapAwareness
from plesio.tensors.look_ahead import LookAheadFolding, momentum_keys
from plesio.tensors.mean import Accumulator, Weighted, blend_buffers, mean_into, move_towards
from plesio.tensors.noise import Noise
from plesio.tensors.one_pass import LARGE, Pass, kernels
from plesio.tensors.optimizer_spec import Groups, OptimizerSpec
from plesio.tensors.outer import Kept, ServerOptimizer, kept_copies
from plesio.tensors.packing import Packing
from plesio.tensors.rows import NO_ROWS, Rows, Tables
from plesio.tensors.shown import Shown
from plesio.tensors.tensor_set import ALL, members_of
from plesio.tensors.versions import Versions

NewArena = Callable[[str], Arena]
"""Makes a zeroed arena for what its argument names."""

CORRECTIONS: dict[type, Callable[[Any, NewArena], Correction] | None] = {
    Plain: None,
    WorkerMomentum: None,  # goes with `LookAhead`, whose folder keeps the momenta
    DelayCompensated: lambda rule, new: DelayCompensation(rule, new("mean square") if rule.adaptive else None),
    GapAware: lambda rule, _: GapAwareness(rule),
}
"""The arithmetic of each answer to `correct`. Nothing else asks of which class an answer is."""


class Folding:
    """Folds into the ring of versions and publishes the current one; without an optimizer, parameters are averaged.

    The current buffer of `versions` holds the first one. The run was asked to have that many `workers`. `packed`: where packed
    answers go, if they are.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: ServerOptimizer | None,
        versions: Versions,
        slots: Sequence[Arena],
        workers: int,
        new_arena: NewArena,
        packed: Sequence[Arena] = (),
        after: Applied | None = None,
        weighted: Weighted | None = None,
    ) -> None:
        self._weighted = weighted
        self._optimizer = optimizer
        self._after = after
        answers = strategy.adopt.codec
        self._shown = Shown(answers, versions, packed) if answers is not None else None
        self._versions = versions
        self._slots = slots
        self._scale = strategy.outer.scale
        self.share_among(workers)
        self._in_rounds = strategy.gather.in_rounds
        self._averages_by_rate = strategy.outer.by_rate or not self._in_rounds
        build = CORRECTIONS[type(strategy.correct)]
        self._correction = build(strategy.correct, new_arena) if build is not None else None
        self._absent: dict[int, int] = {}  # by worker: tensors without a gradient in what lies in its slot
        self._held_absent = ALL  # of all that is in the buffer
        self._marks = strategy.gives_back_mean
        self._tables = Tables.of(versions.buffers)
        codec = strategy.send.codec
        self._packing = Packing(versions.buffers[0].layout, codec).ready() if codec is not None else None
        if self._packing is not None:
            self._unpacked = new_arena("sum of deltas")
        self._noise = Noise(strategy.send.privacy) if strategy.send.privacy is not None else None
        self._held = Accumulator(new_arena("buffer"), _held(strategy)) if _held(strategy) else None

    def share_among(self, workers: int) -> None:
        """The run has so many workers from now on."""
        self._workers = workers
        self._share = [self._scale(folded, workers) for folded in range(1, workers + 1)]

    def set_groups(self, worker: int, groups: Groups) -> None:
        """Fold what comes from `worker` with these hyper-parameters from now on; of several together, the first one's."""
        if self._optimizer is not None:
            self._optimizer.sent_groups(worker, groups)

    def came(self, worker: int, absent: int, rows: tuple[Rows, ...] = ()) -> None:
        """In what lies in `worker`'s slot these tensors have no gradient, and of tables these rows have one."""
        self._absent[worker] = absent
        if self._tables is not None:
            self._tables.came(worker, rows)

    @property
    def row_bytes(self) -> int:
        """What travelled of tables."""
        return self._tables.nbytes if self._tables is not None else 0

    def hold(self, worker: int, weight: float) -> None:
        """Add a contribution to the buffer; its slot is free again."""
        assert self._held is not None, "only a buffer that lets workers go on holds"
        slot = self._slots[worker]
        self._held.add(
            slot if self._packing is None else self._packing.mean_into(self._unpacked, [slot], [1.0]), weight
        )
        if self._tables is not None:
            self._tables.hold(worker, self._slots[worker], weight)
        self._held_absent &= self._absent.get(worker, 0)

    def fold(self, fold: Fold) -> None:
        """Make the next version of the contributions of `fold`."""
        ring = self._versions
        current = ring.buffers[ring.current]
        if self._correction is not None:
            (member,) = fold.members
            self._correction.correct(self._slots[member.worker], current, ring.of(member.worker))
        index = ring.current if self._in_place(fold) else ring.spare()
        target = ring.buffers[index]
        if self._optimizer is None and self._averages_by_rate:
            move_towards(target, current, self._gathered(fold), fold.scale)
        elif self._optimizer is None:
            mean_into(target, *self._parts(fold), by=self._weighted)
            if self._marks:
                self._mark_absent(target, fold)
        else:
            self._step(self._optimizer, target, current, fold, index)
        if self._after is not None:
            self._after(target)
        if self._correction is not None:
            self._correction.stepped(current, target)
        ring.current = index
        if self._shown is not None:
            self._shown.changed()

    def _in_place(self, fold: Fold) -> bool:
        """Whether the next version goes where the current one is: what workers are shown is not that itself; or a large model's
        round has everybody who reads it, and they wait for the fold."""
        if self._shown is not None:
            return True
        if not self._in_rounds or self._optimizer is None or not self._optimizer.in_one_pass(0):
            return False
        return self._versions.readers <= {member.worker for member in fold.members}

    def _parts(self, fold: Fold) -> tuple[list[Arena], list[float]]:
        """What the mean contribution is of, and the shares: what is in the buffer, or unpacked, or lies in the slots, which
        are free once folded."""
        if fold.held:
            assert self._held is not None, "held contributions lie in the buffer"
            return [self._held.take_mean(fold.total_weight)], [1.0]
        slots, shares = [self._slots[one.worker] for one in fold.members], [one.share for one in fold.members]
        if self._packing is not None:
            return [self._packing.mean_into(self._unpacked, slots, shares)], [1.0]
        if self._noise is not None:
            mean_into(slots[0], slots, shares)
            self._noise.add(slots[0], len(slots))
            return slots[:1], [1.0]
        return slots, shares

    def _gathered(self, fold: Fold) -> Arena:
        """The mean contribution, in one arena."""
        slots, shares = self._parts(fold)
        if len(slots) > 1:
            mean_into(slots[0], slots, shares)
        return slots[0]

    def _step(self, optimizer: ServerOptimizer, target: Arena, current: Arena, fold: Fold, index: int) -> None:
        folded = len(fold.members)
        optimizer.step_as(fold.members[0].worker)
        share = self._share[min(folded, self._workers) - 1]
        scales = optimizer.scales(fold.scale, share)
        absent = self._absent_in(fold) if self._absent or fold.held else 0
        if absent and optimizer.has_to_split(absent):
            optimizer.split()
        if self._tables is None and optimizer.in_one_pass(absent):
            slots, shares = self._parts(fold)
            optimizer.step_mean(target, current, slots, shares, scales, share)
            mean = slots[0]
            if len(slots) > 1:
                mean_into(mean, slots, shares, target.layout.buffer_segments)
        elif self._tables is None:
            mean = self._gathered(fold)
            optimizer.step(target, current, mean, scales, absent, NO_ROWS, share)
        else:
            self._tables.bring_up(index, current)
            rows = self._tables.mean(_rows_of(self._tables, fold, self._slots))
            mean = self._gathered(fold)
            optimizer.step(target, current, mean, scales, absent, rows, share)
            self._tables.changed(rows, index)
        if target.layout.buffer_segments:
            blend_buffers(target, current, mean, 1.0 if self._in_rounds else min(1.0, folded / self._workers))

    def _absent_in(self, fold: Fold) -> int:
        """The tensors that nobody has a gradient for: they are left alone, as torch leaves them."""
        if fold.held:
            absent, self._held_absent = self._held_absent, ALL
            return absent
        return reduce(and_, [self._absent.get(one.worker, 0) for one in fold.members])

    def _mark_absent(self, mean: Arena, fold: Fold) -> None:
        """A NaN, which no mean of finite gradients has, says that nobody had a gradient for this tensor."""
        for index in members_of(self._absent_in(fold)):
            mean.views[index].view(-1)[:1] = nan

    def publish(self, reader: int, unasked: bool = False) -> int:
        """Pin the buffer `reader` is to go on from (`unasked`: beside the one it reads until it knows); its index."""
        if self._shown is not None:
            return self._shown.publish(reader, unasked)
        self._versions.pin(reader, self._versions.current, unasked)
        if self._tables is not None:
            self._tables.read(reader)
        return self._versions.current

    def snapshot(self, reader: int) -> int:
        """Pin a buffer with the global parameters as they are; its index."""
        if self._shown is not None:
            return self._shown.whole(reader)
        self._versions.pin(reader, self._versions.current)
        return self._versions.current

    def forget(self, worker: int) -> None:
        """`worker` is gone: it reads nothing any more."""
        self._versions.release(worker)

    def kept(self) -> Kept:
        """What a checkpoint keeps beside the parameters; what is in the buffer is computed again."""
        parts = {"optimizer": self._optimizer, "correction": self._correction, "shown": self._shown}
        kept = {name: part.kept() for name, part in parts.items() if part is not None}
        tensors = {name: tensor for part in kept.values() for name, tensor in part.tensors.items()}
        return Kept(tensors, {name: part.numbers for name, part in kept.items()})

    def restore(self, numbers: dict[str, Any]) -> None:
        """Go on from these; the tensors that `kept` then names are to be filled."""
        if self._optimizer is not None:
            self._optimizer.restore(numbers["optimizer"])
        if self._correction is not None:
            self._correction.restore(numbers["correction"])
        if self._shown is not None:
            self._shown.restore(numbers["shown"])

    def begin_from(self, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Begin with the state that the user's optimizer held; `arenas` hold what its keys name."""
        assert self._optimizer is not None, "nothing is carried to where nobody steps"
        self._optimizer.begin_from(carried, arenas)

    def carried(self) -> Carried:
        """The state of the user's optimizer, as a worker would hold it."""
        return self._optimizer.carried() if self._optimizer is not None else Carried(())

    def copy_state(self, worker: int, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Copy what its keys name into these."""
        if self._optimizer is not None:
            self._optimizer.copy_state(carried, arenas)

    def begin_anew(self) -> None:
        """As after a restore: nobody reads anything but what it was shown, and the buffer is empty."""
        if self._shown is not None:
            self._shown.begin_anew()
        else:
            self._versions.release_all()
        self._held_absent = ALL
        if self._tables is not None:
            self._tables.begin_anew()
        if self._held is not None:
            self._held.empty()


Folder = Folding | LookAheadFolding
"""The tensor side of a strategy at the server."""


def _rows_of(tables: Tables, fold: Fold, slots: Sequence[Arena]) -> list[tuple[float, dict[int, torch.Tensor]]]:
    """Of each contribution its share, and its gradients of tables."""
    if fold.held:
        return [(weight / fold.total_weight, one) for weight, one in tables.take_held()]
    alone = len(fold.members) == 1
    return [(1.0 if alone else one.share, tables.gradients_of(one.worker, slots[one.worker])) for one in fold.members]


def _held(strategy: Strategy) -> int:
    """How many contributions are held for a fold after their workers went on; 0 where each is folded, or waits."""
    together = int(strategy.gather.size(None))
    return together if together > 1 and not strategy.release.after_fold else 0


def state_copies(strategy: Strategy, specs: Sequence[OptimizerSpec], layout: Layout, workers: int) -> int:
    """How many times the size of the model is kept at the server beside versions and slots."""
    kept = kept_copies(specs, layout) if specs else 0
    if strategy.adopt.looks_ahead and kept:
        return kept + workers + _held(strategy)
    return kept + strategy.correct.state_copies + min(1, _held(strategy)) + (strategy.send.codec is not None)


def build_folder(
    strategy: Strategy,
    specs: Sequence[OptimizerSpec],
    versions: Versions,
    slots: Sequence[Arena],
    workers: int,
    new_arena: NewArena,
    packed: Sequence[Arena] = (),
    threads: int = 1,
    after: Applied | None = None,
) -> Folder:
    """The folder for a strategy and a user's optimizers; for none, what averages parameters.

    Passes over a large model are shared among `threads`. `after` is done to each new version.

    An optimizer without a momentum (plain SGD, Adagrad) has nothing to look ahead by, and is folded as it is.
    """
    first = versions.buffers[versions.current]
    optimizer = ServerOptimizer(specs, first, lambda: new_arena("optimizer"), threads) if specs else None
    if strategy.adopt.looks_ahead and optimizer is not None:
        keys = momentum_keys(optimizer)
        if any(keys):
            return LookAheadFolding(
                keys, optimizer, versions, slots, workers, strategy.outer.scale, _held(strategy), new_arena, after
            )
    one_pass = kernels() if strategy.gives_back_mean and sum(first.layout.trained_elements) >= LARGE else None
    weighted = Pass(one_pass, threads).mean if one_pass is not None else None
    return Folding(strategy, optimizer, versions, slots, workers, new_arena, packed, after, weighted)
