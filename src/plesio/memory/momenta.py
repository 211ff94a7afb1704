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

from plesio.memory.gather import Came
from plesio.memory.master import Master
from plesio.memory.publish import Versions
from plesio.memory.register import Register, When
from plesio.memory.steps import Step
from plesio.tensors.adam import root_of
from plesio.tensors.arena import Arena, Kind, flattened
from plesio.tensors.carrying import Carried, Part
from plesio.tensors.corrections import GapDamping
from plesio.tensors.mean import blend_buffers
from plesio.tensors.operands import pieces, quiet
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.optimizer_state import StatefulOptimizer
from plesio.tensors.rows import Tables
from plesio.tensors.server_optimizer import At, OwnMomentum

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
        arenas = [state.array(f"momentum {seat}", When.STEP, seat, "look-ahead") for seat in range(seats)]
        self._momenta = [OwnMomentum(arena, set()) for arena in arenas]
        optimizer.swap(keys, self._momenta)
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
        scales = self.optimizer.scales[came.scale, self._share]
        for group, scale in enumerate(scales):
            mean = self._scale[group]
            self._scale[group] = mean + ((scale - mean) / self._workers if mean else scale)
        self.ready = None
        self._step(target, current, came, scales, index)
        if target.layout.buffer_segments:
            blend_buffers(target, current, came.slots[0], 1.0 / self._workers)
        self._steps += 1
        if self._steps % RESUM_EVERY == 0:
            self._resum()
        if came.worker not in self.live:  # departed since: its momentum will not act again
            self.forget(came.worker)

    def _step(self, target: Arena, current: Arena, came: Came, scales: Sequence[float], index: int) -> None:
        optimizer, own, (gradient,) = self.optimizer, self._momenta[came.worker], came.slots
        if came.then is not None:
            damped = came.scratch or gradient
            self.damping.correct(gradient, current, came.then, came.absent, damped)
            gradient = damped
        optimizer.step_as(came.worker, came.absent)
        if came.then is None and not optimizer.directly:
            (gradient,) = came.own().slots
        moved = list(zip(self.sum.trained, own.arena.trained, strict=True))
        if came.absent:
            left_alone = target.layout.lacking(came.absent)
            moved = [both for segment, both in enumerate(moved) if segment not in left_alone]
        for whole, part in moved:
            whole -= part
        if self.tables is not None:
            self.tables.bring_up(index, current)
        optimizer.step(target, current, gradient, scales, came.absent, came.rows, self._share, own)
        if self.tables is not None:
            self.tables.changed(came.rows, index)
        for whole, part in moved:
            whole += part

    def ahead(self, free: int) -> tuple[int, bool]:
        """The buffer that has the version about where it will be: the `free` one, unless a pass wrote it. Whether it moves."""
        ats = self.optimizer.known or self.optimizer.at()
        factors, ready, self.ready = self.factors(ats), self.ready, None
        if ready is not None and ready[1] == factors:
            return ready[0], any(factors)
        master = self._master.weights if self._master is not None else self._versions.buffers[self._versions.current]
        self.look_ahead(self._versions.buffers[free], master, range(len(ats)), ats, factors)
        return free, any(factors)

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

    @quiet
    def _resum(self) -> None:
        self.ready = None
        first, *others = self._momenta
        self.sum.copy_from(first.arena, Kind.TRAINED)
        for own in others:
            for whole, part in zip(self.sum.trained, own.arena.trained, strict=True):
                whole += part

    def factors(self, ats: Sequence[At]) -> list[float]:
        """What look-ahead adds of the sum of the momenta, for Adam divided by the root of the second moment."""
        others = 1.0 - 1.0 / max(1, len(self.live))
        return [_factor(at, at.group["lr"] * self._scale[at.number] * others) for at in ats]

    def forget(self, worker: int) -> None:
        own = self._momenta[worker]
        for part in own.arena.of_kind(Kind.TRAINED):
            part.zero_()
        own.begun.clear()
        self._resum()

    remembers = True

    def _sums_anew(self, worker: int) -> bool:
        """Whether the momenta are summed anew after the next step, of `worker`'s contribution."""
        return worker not in self.live or (self._steps + 1) % RESUM_EVERY == 0

    def numbers(self) -> dict[str, Any]:
        return {
            "scale": list(self._scale),
            "steps": self._steps,
            "damping": self.damping.numbers(),
            "begun": [sorted(own.begun) for own in self._momenta],
            "workers": self._workers,
        }

    def take(self, numbers: dict[str, Any]) -> None:
        self.ready = None
        self._scale, self._steps = list(numbers["scale"]), numbers["steps"]
        self._workers = numbers["workers"]
        self._share = self._scale_of(1, self._workers)
        self.damping.take(numbers["damping"])
        for own, begun in zip(self._momenta, numbers["begun"], strict=True):
            own.begun.clear()
            own.begun.update(begun)

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
            arena, begun = self._momenta[worker]
            own = self.optimizer.select(arena)
            for position, key in brought.items():
                own[position].copy_(self.optimizer.select(given[key])[position])
            begun.update(brought)
        if brought:
            self._resum()
            self._scale = list(self.optimizer.scales[self._share, self._share])

    def carried(self) -> Carried:
        return self.optimizer.carried(self._workers)

    def copy_state(self, worker: int, carried: Carried, arenas: Sequence[Arena]) -> None:
        self.optimizer.copy_state(carried, arenas, self._momenta[worker].arena)


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
