"""DANA: one momentum for each worker, and parameters sent with look-ahead.

Worker i's contribution moves its own momentum v_i and the global parameters w by it; a worker is then sent

    w - lr mu (1 - 1/n) sum_j v_j          (Nesterov: mu^2 in place of mu)

for n live workers, which is about where the parameters will be when its next contribution comes: meanwhile each of the
others contributes once, and of the pushes that come 1 - 1/n are others'. The gradient is thus taken about where it will be
applied, and a momentum tuned for synchronous training keeps its meaning. What the look-ahead did not foresee is damped,
element by element, see `plesio.tensors.corrections.GapDamping`. With one worker nothing is looked ahead to, nothing is
damped, and this is the plain optimizer, bit for bit.

The user's own optimizer does the step: before it, worker i's momentum is put in the place of the optimizer's. For Adam the
first moment is kept for each worker and the look-ahead is divided by the root of the second, which is shared. N workers
feed the second moment N times as often as in step, each with 1/N of the samples. So its decay is the N-th root of the user's:
then it remembers as many samples as it would there.
Source: Hakimi et al. 2019, arXiv 1907.11612 (there without the factor 1 - 1/n and without damping; see docs/decisions/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from plesio.core.events import Fold
from plesio.memory.gather import Came
from plesio.memory.master import Master
from plesio.memory.publish import Publisher, Versions
from plesio.memory.register import Register, When
from plesio.memory.steps import Step
from plesio.tensors.adam import root_of
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import ALL_PARTS, Arena, Kind, flattened
from plesio.tensors.carrying import Carried, Part
from plesio.tensors.corrections import GapDamping
from plesio.tensors.mean import blend_buffers
from plesio.tensors.one_pass import PassAhead
from plesio.tensors.operands import pieces, quiet
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.optimizer_state import StatefulOptimizer
from plesio.tensors.rows import Tables
from plesio.tensors.server_optimizer import At

RESUM_EVERY = 1024
"""Folds after which the sum of the momenta is recomputed, against accumulated rounding."""


def momentum_keys(optimizer: StatefulOptimizer) -> list[str | None]:
    """By group: its optimizer's key for its momentum; None if it has none that look-ahead supports."""
    kinds = optimizer.kinds
    moved = {kind for kind, group in zip(kinds, optimizer.groups, strict=True) if group.get("momentum")}
    keys = {Adam: "exp_avg", AdamW: "exp_avg"} | dict.fromkeys(moved & {SGD, RMSprop}, "momentum_buffer")
    return [keys.get(kind) for kind in kinds]


def keeps_momentum(groups: Groups) -> bool:
    """Whether an optimizer with these settings keeps a momentum, judged by torch's names for its decay.

    >>> keeps_momentum([{"lr": 0.1, "betas": (0.9, 0.999)}]), keeps_momentum([{"lr": 0.1, "momentum": 0}])
    (True, False)
    """
    return any(group.get("momentum") or (group.get("betas") or (0.0,))[0] for group in groups)


class Momenta(Step, Part):
    """A step of the user's optimizer with the momentum of the worker whose gradient came.

    Args:
        keys: by group, its optimizer's for its momentum.
        seats: how many workers there may be; `workers`: as many the run was asked to have.
        scale_of: the part of the learning rate of so many contributions.
    """

    def __init__(
        self,
        keys: list[str | None],
        optimizer: StatefulOptimizer,
        versions: Versions,
        master: Master | None,
        seats: int,
        workers: int,
        scale_of: Callable[[int, int], float],
        state: Register,
    ) -> None:
        self.optimizer: StatefulOptimizer = optimizer
        optimizer.swapped = keys
        self.live: set[int] = set()
        """Who reads a version, and will contribute."""
        self.damping = GapDamping(optimizer.large)
        self.tables: Tables | None = None
        self._versions = versions
        self._master = master
        self._workers = workers
        self._scale_of = scale_of
        self._share = scale_of(1, workers)
        state.parts["look-ahead"] = self
        self._momenta = [state.array(f"momentum {seat}", When.STEP, seat, "look-ahead") for seat in range(seats)]
        self._begun: list[set[int]] = [set() for _ in range(seats)]  # by worker: positions whose momentum has started
        self.sum = state.array("sum of momenta", When.STEP, part="look-ahead")
        self._scale = [0.0] * len(keys)  # by group: running mean of the folds' learning-rate scales
        self._steps = 0
        self.ready: tuple[int, list[float]] | None = None
        """The buffer that holds the look-ahead, and by which factors it was made, if nothing has changed since."""
        optimizer.set_groups(self._paced(workers, optimizer.groups))

    def share_among(self, workers: int) -> None:
        """The second moment, and its count of steps, go on at the pace of as many."""
        if workers == self._workers:
            return
        ratio = workers / self._workers
        self._workers, self._share = workers, self._scale_of(1, workers)
        self.optimizer.change_groups(partial(self._paced, ratio))
        self._count_steps(ratio)

    def _count_steps(self, ratio: float) -> None:
        """Adam's count of steps goes with its second moment."""
        for at in self.optimizer.at():
            if at.swapped == "exp_avg" and "step" in at.state:
                at.state["step"] = at.state["step"] * ratio

    def set_groups(self, worker: int, groups: Groups) -> None:
        self.optimizer.sent_groups(worker, self._paced(self._workers, groups))

    def _paced(self, workers: float, groups: Groups) -> Groups:
        """The settings, with second moments that take so many times as many steps to forget: they cover as many samples as in
        synchronous training."""
        return [
            _paced(workers, group) if key == "exp_avg" else group
            for group, key in zip(groups, self.optimizer.swapped, strict=True)
        ]

    def damp(self, gradient: Arena, then: Arena, absent: int) -> None:
        """Damp a gradient that is kept for a later fold."""
        if self._master is None:
            self.damping.correct(gradient, self._versions.buffers[self._versions.current], then, absent)
        else:
            self.damping.correct(gradient, self._master.weights, self._master.behind(then), absent)

    @quiet
    def __call__(self, target: Arena, current: Arena, came: Came, index: int) -> None:
        """Both are the master copy, which nobody reads. A gradient is damped if the version that it was computed at is known."""
        worker, (gradient,) = came.worker, came.slots
        optimizer = self.optimizer
        scales = optimizer.scales(came.scale, self._share)
        optimizer.step_as(worker)
        if came.absent and optimizer.has_to_split(came.absent):
            was = optimizer.split()
            self._begun = [{new for new, old in enumerate(was) if old in begun} for begun in self._begun]
        own, ats = optimizer.select(self._momenta[worker]), optimizer.at()
        one_pass = self.tables is None and optimizer.in_one_pass(came.absent) and all(optimizer.swapped)
        self._scale = [
            mean + ((scale - mean) / self._workers if mean else scale)
            for mean, scale in zip(self._scale, scales, strict=True)
        ]
        self._swap_in(own, ats, self._begun[worker])
        self.ready = None
        step = self._step_in_one_pass if one_pass else self._step_by_parts
        step(target, current, came, own, scales, index)
        if target.layout.buffer_segments:
            blend_buffers(target, current, gradient, 1.0 / self._workers)
        self._steps += 1
        if self._steps % RESUM_EVERY == 0:
            self._resum()
        if worker not in self.live:  # departed since: its momentum will not act again
            self.forget(worker)

    def _step_by_parts(
        self,
        target: Arena,
        current: Arena,
        came: Came,
        own: Sequence[torch.Tensor],
        scales: Sequence[float],
        index: int,
    ) -> None:
        (gradient,), momentum = came.slots, self._momenta[came.worker]
        if came.then is not None:
            damped = came.scratch or gradient
            self.damping.correct(gradient, current, came.then, came.absent, damped)
            gradient = damped
        elif not self.optimizer.directly:
            (gradient,) = came.own().slots
        lacking = self.optimizer.pieces_lacking(came.absent)
        moved = list(zip(self.sum.trained, momentum.trained, strict=True))
        if came.absent:
            left_alone = target.layout.lacking(came.absent)
            moved = [both for segment, both in enumerate(moved) if segment not in left_alone]
        for whole, part in moved:
            whole -= part
        if self.tables is not None:
            self.tables.bring_up(index, current)
        self.optimizer.step(target, current, gradient, scales, came.absent, came.rows, self._share)
        if self.tables is not None:
            self.tables.changed(came.rows, index)
        self._swap_out(own, self._begun[came.worker], lacking)
        for whole, part in moved:
            whole += part

    def _step_in_one_pass(
        self,
        target: Arena,
        current: Arena,
        came: Came,
        own: Sequence[torch.Tensor],
        scales: Sequence[float],
        index: int,
    ) -> None:
        """The same in one pass, which also writes the look-ahead into a free buffer."""
        totals = self.optimizer.select(self.sum)
        before = self.optimizer.select(came.then) if came.then is not None else None
        free_buffer = self._versions.spare(index)
        shown = self._versions.buffers[free_buffer]
        free = came.scratch or came.slots[0]  # which is read before it is written
        out = self.optimizer.select(shown if self._master is None else free)

        def ahead(position: int) -> PassAhead:
            then, closeness = (before[position], self.damping.closeness(position)) if before else (None, 0.0)
            return PassAhead(
                totals[position], then, closeness, out[position], self.factors(self.optimizer.at())[position]
            )

        gaps = self.optimizer.step_mean(
            target, current, came.slots, [1.0], scales, self._share, own, ahead, came.absent
        )
        elements, lacking = target.layout.trained_elements, self.optimizer.pieces_lacking(came.absent)
        for position, lacks in enumerate(lacking):
            if before and not lacks:
                self.damping.learn(position, gaps[position], elements[position])
            if self._master is not None and not lacks:
                self.optimizer.select(shown)[position].copy_(out[position])
        self._swap_out(own, self._begun[came.worker], lacking)
        ats = self.optimizer.at()
        factors = self.factors(ats)
        self.look_ahead(shown, target, [position for position, lacks in enumerate(lacking) if lacks], ats, factors)
        self.ready = free_buffer, factors

    def look_ahead(
        self, target: Arena, master: Arena, positions: Iterable[int], ats: Sequence[At], factors: Sequence[float]
    ) -> None:
        """Write what lies at these positions of the `master` copy into `target` as it will be about."""
        optimizer = self.optimizer
        outs, weights, totals = optimizer.select(target), optimizer.select(master), optimizer.select(self.sum)
        for position in positions:
            at, factor = ats[position], factors[position]
            out, weight, total = outs[position], weights[position], totals[position]
            if at.table:
                continue
            if not at.state:  # without a momentum, or before its first step
                optimizer.leave(position, target, master)
                continue
            if not factor:
                out.copy_(weight)
                continue
            if "exp_avg_sq" not in at.state:
                torch.add(weight, total, alpha=factor, out=out)
                continue
            by = optimizer.numbers_of(position)
            squares = at.state["max_exp_avg_sq" if at.group["amsgrad"] else "exp_avg_sq"]
            for new, old, momenta, square in pieces(*map(flattened, (out, weight, total, squares))):
                torch.addcdiv(old, momenta, root_of(square, by), value=factor, out=new)

    def look_ahead_of_current(self, target: Arena, ats: Sequence[At], factors: Sequence[float]) -> None:
        """Write the whole version into `target` likewise."""
        master = self._master.weights if self._master is not None else self._versions.buffers[self._versions.current]
        self.look_ahead(target, master, range(len(ats)), ats, factors)

    def _swap_in(self, own: Sequence[torch.Tensor], ats: Sequence[At], begun: set[int]) -> None:
        for position, (at, momentum) in enumerate(zip(ats, own, strict=True)):
            if at.swapped in at.state:
                damped = at.group.get("dampening")  # torch does not dampen a first gradient: None makes it start one
                at.state[at.swapped] = momentum if not damped or position in begun else None

    def _swap_out(self, own: Sequence[torch.Tensor], begun: set[int], lacking: Sequence[bool]) -> None:
        """At the first step the optimizer makes its own momentum: copy it."""
        for position, (at, momentum) in enumerate(zip(self.optimizer.at(), own, strict=True)):
            if at.swapped is None or lacking[position] or (value := at.state.get(at.swapped)) is None:
                continue
            if value.data_ptr() != momentum.data_ptr():
                at.state[at.swapped] = momentum.copy_(value)
            if at.group.get("momentum"):
                begun.add(position)

    @quiet
    def _resum(self) -> None:
        self.ready = None
        self.sum.copy_from(self._momenta[0], Kind.TRAINED)
        for momentum in self._momenta[1:]:
            for whole, part in zip(self.sum.trained, momentum.trained, strict=True):
                whole += part

    def factors(self, ats: Sequence[At]) -> list[float]:
        """What look-ahead adds of the sum of the momenta, for Adam divided by the root of the second moment."""
        others = 1.0 - 1.0 / max(1, len(self.live))
        return [_factor(at, at.group["lr"] * self._scale[at.number] * others) for at in ats]

    def forget(self, worker: int) -> None:
        for part in self._momenta[worker].of_kind(Kind.TRAINED):
            part.zero_()
        self._begun[worker].clear()
        self._resum()

    remembers = True

    def can_undo(self, worker: int, absent: int) -> bool:
        """Not where momenta are summed anew, in place."""
        anew = worker not in self.live or (self._steps + 1) % RESUM_EVERY == 0
        all_swapped = self.tables is None and all(self.optimizer.swapped)
        return not anew and all_swapped and self.optimizer.in_one_pass(absent)

    def numbers(self) -> dict[str, Any]:
        return {
            "scale": self._scale,
            "steps": self._steps,
            "damping": self.damping.numbers(),
            "begun": list(map(sorted, self._begun)),
            "workers": self._workers,
        }

    def take(self, numbers: dict[str, Any]) -> None:
        self.ready = None
        self._scale, self._steps = list(numbers["scale"]), numbers["steps"]
        self._workers = numbers["workers"]
        self._share = self._scale_of(1, self._workers)
        self.damping.take(numbers["damping"])
        self._begun = [set(positions) for positions in numbers["begun"]]

    def begin_from(self, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Start with the state that the user's optimizer held; every worker's momentum starts as a copy of its momentum.

        The second moment decays by the N-th root, so its step count is N times the user's.
        """
        self.optimizer.begin_from(carried, arenas)
        self._count_steps(self._workers)
        given = dict(zip(carried.keys, arenas, strict=False))
        brought = {
            position: str(at.swapped) for position, at in enumerate(self.optimizer.at()) if at.swapped in at.state
        }
        for worker in range(self._workers if brought else 0):
            own = self.optimizer.select(self._momenta[worker])
            for position, key in brought.items():
                own[position].copy_(self.optimizer.select(given[key])[position])
            self._begun[worker] = set(brought)
        if brought:
            self._resum()
            self._scale = list(self.optimizer.scales(self._share, self._share))

    def carried(self) -> Carried:
        return self.optimizer.carried(self._workers)

    def copy_state(self, worker: int, carried: Carried, arenas: Sequence[Arena]) -> None:
        self.optimizer.copy_state(carried, arenas, self._momenta[worker])


def _factor(at: At, rate: float) -> float:
    if at.swapped == "momentum_buffer":
        momentum = at.group["momentum"]
        return float(-rate * (momentum**2 if at.group.get("nesterov") else momentum))
    if at.swapped is None or "exp_avg_sq" not in at.state:
        return 0.0
    first = at.group["betas"][0]
    return float(-rate * first / (1.0 - first ** float(at.state["step"])))


def _paced(workers: float, group: dict[str, Any]) -> dict[str, Any]:
    first, second = group["betas"]
    return {**group, "betas": (first, second ** (1.0 / workers))}


class Ahead(Publisher):
    """Shows the parameters about where they will be. The master copy, in the ring's current buffer, is never published itself."""

    writes = True

    def __init__(self, momenta: Momenta, versions: Versions, tables: Tables | None, after: Applied | None) -> None:
        super().__init__(versions, tables)
        self._momenta = momenta
        self._after = after

    def next(self, fold: Fold, step: object) -> int:
        versions = self.versions
        return versions.current if versions.lasting is None else self._next_in_place()

    def made(self, index: int) -> None:
        self.versions.current = index

    def rewritten(self) -> None:
        self._momenta.ready = None  # it was of the weights before

    def publish(self, reader: int, unasked: bool = False, part: int = ALL_PARTS) -> int:
        assert not unasked, "cancellation needs rounds, and rounds do not look ahead"
        momenta, versions = self._momenta, self.versions
        momenta.live.add(reader)
        ready, momenta.ready = momenta.ready, None
        ats = momenta.optimizer.at()
        factors = momenta.factors(ats)
        index = ready[0] if ready is not None and ready[1] == factors else self._look_ahead(ats, factors)
        out, master = versions.buffers[index], versions.buffers[versions.current]
        if self._after is not None and any(factors):  # else it is the master copy
            self._after(out)
        if master.layout.buffer_segments:
            out.copy_from(master, Kind.BUFFER)
        if self._tables is not None:
            self._tables.bring_up(index, master)
            self._tables.read(reader)
        versions.pin(reader, index)
        return index

    def published(self, reader: int, index: int, part: int = ALL_PARTS) -> None:
        self._momenta.live.add(reader)
        self._momenta.ready = None
        self.versions.pin(reader, index)

    def _look_ahead(self, ats: Sequence[At], factors: Sequence[float]) -> int:
        """Write the parameters with look-ahead into a free buffer; its index."""
        versions, index = self.versions, self.versions.spare()
        self._momenta.look_ahead_of_current(versions.buffers[index], ats, factors)
        return index

    def whole(self, reader: int) -> int:
        versions = self.versions
        versions.release(reader)
        self._momenta.ready = None
        index, master = versions.spare(), versions.buffers[versions.current]
        versions.buffers[index].copy_from(master, Kind.TRAINED, Kind.FROZEN, Kind.BUFFER)
        if self._tables is not None:
            self._tables.bring_up(index, master)
        versions.pin(reader, index)
        return index

    def pinned_whole(self, reader: int, index: int) -> None:
        self.versions.release(reader)
        self._momenta.ready = None
        self.versions.pin(reader, index)

    def forget(self, reader: int) -> None:
        self._momenta.live.discard(reader)
        super().forget(reader)

    def begin_anew(self) -> None:
        super().begin_anew()
        self._momenta.ready = None
        self._momenta.live.clear()
