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
feed the second moment N times as often as in step, each with 1/N of the samples: its decay is the N-th root of the user's,
so that it remembers as many samples as it would there.
Source: Hakimi et al. 2019, arXiv 1907.11612 (there without the factor 1 - 1/n and without damping; see docs/decisions/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, RMSprop

from plesio.core.events import Fold
from plesio.tensors.adam import root_of
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.carrying import Carried
from plesio.tensors.corrections import GapDamping
from plesio.tensors.mean import blend_buffers
from plesio.tensors.one_pass import Ahead
from plesio.tensors.operands import pieces, quiet
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.outer import Kept, ServerOptimizer
from plesio.tensors.rows import NO_ROWS, Rows, Tables
from plesio.tensors.versions import Versions

RESUM_EVERY = 1024
"""Folds after which the sum of the momenta is recomputed, against accumulated rounding."""


def momentum_keys(optimizer: ServerOptimizer) -> list[str | None]:
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


class LookAheadFolding:
    """Folds contributions one after the other into a master copy and publishes it with look-ahead.

    `keys`: by group, its optimizer's for its momentum; `share`: the part of the learning rate of one contribution; `held`: how
    many contributions are buffered until the fold.
    """

    def __init__(
        self,
        keys: list[str | None],
        optimizer: ServerOptimizer,
        versions: Versions,
        slots: Sequence[Arena],
        workers: int,
        scale_of: Callable[[int, int], float],
        held: int,
        new_arena: Callable[[str], Arena],
        after: Applied | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._after = after
        optimizer.swapped = keys
        self._versions = versions
        self._slots = slots
        self._workers = workers
        self._scale_of = scale_of
        self._share = scale_of(1, workers)
        self._live: set[int] = set()
        self._master = versions.buffers[versions.current]  # never published itself
        self._absent: dict[int, int] = {}  # by worker: tensors without a gradient in what lies in its slot
        self._held_absent = [0] * held
        self._held = [new_arena("buffer") for _ in range(held)]
        self._waiting = 0
        self._tables = Tables.of(versions.buffers)
        self._momenta = [new_arena("momentum") for _ in slots]
        self._begun: list[set[int]] = [set() for _ in slots]  # by worker: positions whose momentum has started
        self._sum = new_arena("sum of momenta")
        self._damping = GapDamping(optimizer.large)
        self._scale = [0.0] * len(keys)  # by group: running mean of the folds' learning-rate scales
        self._steps = 0
        self._ready: tuple[int, list[float]] | None = None
        """The buffer that holds the look-ahead, and by which factors it was made, if nothing has changed since."""
        optimizer.set_groups(self._paced(workers, optimizer.groups))

    def share_among(self, workers: int) -> None:
        """The run has so many workers from now on: the second moment, and its count of steps, go on at the pace of as many."""
        if workers == self._workers:
            return
        ratio = workers / self._workers
        self._workers, self._share = workers, self._scale_of(1, workers)
        self._optimizer.change_groups(partial(self._paced, ratio))
        self._count_steps(ratio)

    def _count_steps(self, ratio: float) -> None:
        """Adam's count of steps goes with its second moment."""
        for position in range(len(self._optimizer.parameters)):
            state = self._optimizer.state_of(position)
            if self._optimizer.swapped_of(position) == "exp_avg" and "step" in state:
                state["step"] = state["step"] * ratio

    def set_groups(self, worker: int, groups: Groups) -> None:
        self._optimizer.sent_groups(worker, self._paced(self._workers, groups))

    def _paced(self, workers: float, groups: Groups) -> Groups:
        """The settings, with second moments that take so many times as many steps to forget: they cover as many samples as in
        synchronous training."""
        return [
            _paced(workers, group) if key == "exp_avg" else group
            for group, key in zip(groups, self._optimizer.swapped, strict=True)
        ]

    def came(self, worker: int, absent: int, rows: tuple[Rows, ...] = ()) -> None:
        self._absent[worker] = absent
        if self._tables is not None:
            self._tables.came(worker, rows)

    @property
    def row_bytes(self) -> int:
        return self._tables.nbytes if self._tables is not None else 0

    def hold(self, worker: int, weight: float) -> None:
        """Keep a copy until the fold, which frees its slot and unpins the version it was computed from."""
        self._damping.correct(self._slots[worker], self._master, self._versions.of(worker))
        self._held[self._waiting].copy_from(self._slots[worker], Kind.TRAINED, Kind.BUFFER)
        if self._tables is not None:
            self._tables.hold(worker, self._slots[worker], 1.0)
        self._held_absent[self._waiting] = self._absent.get(worker, 0)
        self._waiting += 1

    def fold(self, fold: Fold) -> None:
        """Step the master copy with each contributing worker's momentum, in order of arrival."""
        held = self._tables.take_held() if self._tables is not None and fold.held else []
        for place, member in enumerate(fold.members):
            gradient = self._held[place] if fold.held else self._slots[member.worker]
            absent = self._held_absent[place] if fold.held else self._absent.get(member.worker, 0)
            scales = self._optimizer.scales(fold.scale * member.share, self._share)
            rows = NO_ROWS
            if self._tables is not None:
                rows = held[place][1] if fold.held else self._tables.gradients_of(member.worker, gradient)
            damped = not fold.held and member.worker in self._live  # a departed worker's base version is unknown
            then = self._versions.of(member.worker) if damped else None
            self._step(member.worker, gradient, then, scales, absent, rows)
            if member.worker not in self._live:  # departed since: its momentum will not act again
                self._forget_momentum(member.worker)
        self._waiting = 0

    @quiet
    def _step(
        self,
        worker: int,
        gradient: Arena,
        then: Arena | None,
        scales: Sequence[float],
        absent: int,
        rows: Mapping[int, torch.Tensor],
    ) -> None:
        """Step with a gradient, which was computed at the version `then`, if it is to be damped."""
        self._optimizer.step_as(worker)
        if self._optimizer.has_to_split(absent):
            was = self._optimizer.split()
            self._begun = [{new for new, old in enumerate(was) if old in begun} for begun in self._begun]
        own = self._optimizer.select(self._momenta[worker])
        self._scale = [
            mean + ((scale - mean) / self._workers if mean else scale)
            for mean, scale in zip(self._scale, scales, strict=True)
        ]
        self._swap_in(own, self._begun[worker])
        self._ready = None
        if self._tables is None and self._optimizer.in_one_pass(absent) and all(self._optimizer.swapped):
            self._step_in_one_pass(worker, gradient, then, scales)
        else:
            self._step_by_parts(worker, gradient, then, scales, absent, rows)
        if self._after is not None:  # what was written ahead is of the weights before it
            self._after(self._master)
            self._ready = None
        blend_buffers(self._master, self._master, gradient, 1.0 / self._workers)
        self._steps += 1
        if self._steps % RESUM_EVERY == 0:
            self._resum()

    def _step_by_parts(
        self,
        worker: int,
        gradient: Arena,
        then: Arena | None,
        scales: Sequence[float],
        absent: int,
        rows: Mapping[int, torch.Tensor],
    ) -> None:
        if then is not None:
            self._damping.correct(gradient, self._master, then)
        for whole, part in zip(self._sum.trained, self._momenta[worker].trained, strict=True):
            whole -= part
        self._optimizer.step(self._master, self._master, gradient, scales, absent, rows, self._share)
        if self._tables is not None:
            self._tables.changed(rows, self._versions.current)
        self._swap_out(
            self._optimizer.select(self._momenta[worker]), self._begun[worker], self._optimizer.lacking(absent)
        )
        for whole, part in zip(self._sum.trained, self._momenta[worker].trained, strict=True):
            whole += part

    def _step_in_one_pass(self, worker: int, gradient: Arena, then: Arena | None, scales: Sequence[float]) -> None:
        """The same in one pass, which also writes the look-ahead into a free buffer."""
        own = self._optimizer.select(self._momenta[worker])
        totals = self._optimizer.select(self._sum)
        before = self._optimizer.select(then) if then is not None else None
        index = self._versions.spare()
        out = self._optimizer.select(self._versions.buffers[index])

        def ahead(position: int) -> Ahead:
            then, closeness = (before[position], self._damping.closeness(position)) if before else (None, 0.0)
            return Ahead(totals[position], then, closeness, out[position], self._factor(position))

        gaps = self._optimizer.step_mean(self._master, self._master, [gradient], [1.0], scales, self._share, own, ahead)
        if before:
            for position, (sums, elements) in enumerate(zip(gaps, gradient.layout.trained_elements, strict=True)):
                self._damping.learn(position, sums, elements)
        self._swap_out(own, self._begun[worker], self._optimizer.lacking(0))
        self._ready = index, self._factors()

    def _swap_in(self, own: Sequence[torch.Tensor], begun: set[int]) -> None:
        for position, momentum in enumerate(own):
            state, key = self._optimizer.state_of(position), self._optimizer.swapped_of(position)
            if key in state:
                damped = self._optimizer.group_of(position).get("dampening")  # torch does not dampen a first gradient:
                state[key] = momentum if not damped or position in begun else None  # None makes it start one

    def _swap_out(self, own: Sequence[torch.Tensor], begun: set[int], lacking: Sequence[bool]) -> None:
        """At the first step the optimizer makes its own momentum: copy it."""
        for position, momentum in enumerate(own):
            state, key = self._optimizer.state_of(position), self._optimizer.swapped_of(position)
            if key is None or lacking[position] or (value := state.get(key)) is None:
                continue
            if value.data_ptr() != momentum.data_ptr():
                state[key] = momentum.copy_(value)
            if self._optimizer.group_of(position).get("momentum"):
                begun.add(position)

    @quiet
    def _resum(self) -> None:
        self._ready = None
        self._sum.copy_from(self._momenta[0], Kind.TRAINED)
        for momentum in self._momenta[1:]:
            for whole, part in zip(self._sum.trained, momentum.trained, strict=True):
                whole += part

    def publish(self, reader: int, unasked: bool = False) -> int:
        """Write the look-ahead for `reader` into a free buffer and pin it; its index."""
        assert not unasked, "cancellation needs rounds, and rounds do not look ahead"
        self._live.add(reader)
        self._versions.release(reader)
        ready, self._ready = self._ready, None
        index = ready[0] if ready is not None and ready[1] == self._factors() else self._look_ahead()
        out = self._versions.buffers[index]
        if self._after is not None and any(self._factors()):  # else it is the master copy
            self._after(out)
        out.copy_from(self._master, Kind.BUFFER)
        if self._tables is not None:
            self._tables.bring_up(index, self._master)
            self._tables.read(reader)
        self._versions.pin(reader, index)
        return index

    def _look_ahead(self) -> int:
        """Write the parameters with look-ahead into a free buffer; its index."""
        index = self._versions.spare()
        totals, targets = self._optimizer.select(self._sum), self._optimizer.select(self._versions.buffers[index])
        weights = self._optimizer.select(self._master)
        for position, (out, weight, total) in enumerate(zip(targets, weights, totals, strict=True)):
            if self._optimizer.is_table(position):
                continue
            state, factor = self._optimizer.state_of(position), self._factor(position)
            if not factor:
                out.copy_(weight)
                continue
            if "exp_avg_sq" not in state:
                torch.add(weight, total, alpha=factor, out=out)
                continue
            by = self._optimizer.numbers_of(position)
            squares = state["max_exp_avg_sq" if self._optimizer.group_of(position)["amsgrad"] else "exp_avg_sq"]
            for target, master, momenta, square in pieces(*(t.view(-1) for t in (out, weight, total, squares))):
                torch.addcdiv(master, momenta, root_of(square, by), value=factor, out=target)
        return index

    def _factors(self) -> list[float]:
        return [self._factor(position) for position in range(len(self._optimizer.parameters))]

    def _factor(self, position: int) -> float:
        """What look-ahead adds of the sum of the momenta, for Adam divided by the root of the second moment."""
        state, key = self._optimizer.state_of(position), self._optimizer.swapped_of(position)
        group = self._optimizer.group_of(position)
        rate = group["lr"] * self._scale[self._optimizer.group_at(position)] * (1.0 - 1.0 / max(1, len(self._live)))
        if key == "momentum_buffer":
            momentum = group["momentum"]
            return float(-rate * (momentum**2 if group.get("nesterov") else momentum))
        if key is None or "exp_avg_sq" not in state:
            return 0.0
        first = group["betas"][0]
        return float(-rate * first / (1.0 - first ** float(state["step"])))

    def snapshot(self, reader: int) -> int:
        self._versions.release(reader)
        self._ready = None
        index = self._versions.spare()
        self._versions.buffers[index].copy_from(self._master, Kind.TRAINED, Kind.FROZEN, Kind.BUFFER)
        if self._tables is not None:
            self._tables.bring_up(index, self._master)
        self._versions.pin(reader, index)
        return index

    def forget(self, worker: int) -> None:
        self._live.discard(worker)
        self._versions.release(worker)
        self._forget_momentum(worker)

    def _forget_momentum(self, worker: int) -> None:
        for part in self._momenta[worker].of_kind(Kind.TRAINED):
            part.zero_()
        self._begun[worker].clear()
        self._resum()

    def kept(self) -> Kept:
        optimizer = self._optimizer.kept()
        momenta = {f"momentum {worker}": arena.memory for worker, arena in enumerate(self._momenta)}
        tensors = {**optimizer.tensors, **momenta, "sum of momenta": self._sum.memory}
        begun = [sorted(positions) for positions in self._begun]
        own = {"scale": self._scale, "steps": self._steps, "damping": self._damping.kept().numbers, "begun": begun}
        own["workers"] = self._workers
        return Kept(tensors, {"optimizer": optimizer.numbers, "look-ahead": own})

    def restore(self, numbers: dict[str, Any]) -> None:
        own = numbers["look-ahead"]
        self._optimizer.restore(numbers["optimizer"])
        self._scale, self._steps = list(own["scale"]), own["steps"]
        self._workers = own.get("workers", self._workers)
        self._share = self._scale_of(1, self._workers)
        self._damping.restore(own["damping"])
        self._begun = [set(positions) for positions in own["begun"]]

    def begin_from(self, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Start with the state that the user's optimizer held; every worker's momentum starts as a copy of its momentum.

        The second moment decays by the N-th root, so its step count is N times the user's.
        """
        self._optimizer.begin_from(carried, arenas)
        positions = range(len(self._optimizer.parameters))
        self._count_steps(self._workers)
        given = dict(zip(carried.keys, arenas, strict=False))
        brought = [one for one in positions if self._optimizer.swapped_of(one) in self._optimizer.state_of(one)]
        for worker in range(self._workers if brought else 0):
            own = self._optimizer.select(self._momenta[worker])
            for position in brought:
                momentum = given[str(self._optimizer.swapped_of(position))]
                own[position].copy_(self._optimizer.select(momentum)[position])
            self._begun[worker] = set(brought)
        if brought:
            self._resum()
            self._scale = list(self._optimizer.scales(self._share, self._share))

    def carried(self) -> Carried:
        """The state of the user's optimizer, as a worker would hold it: `begin_from` begins from that."""
        return self._optimizer.carried(self._workers)

    def copy_state(self, worker: int, carried: Carried, arenas: Sequence[Arena]) -> None:
        """Copy what its keys name into these; of the momenta, that of `worker`."""
        self._optimizer.copy_state(carried, arenas, self._momenta[worker])

    def begin_anew(self) -> None:
        self._versions.release_all()
        self._ready = None
        self._waiting = 0
        if self._tables is not None:
            self._tables.begin_anew()
        self._live.clear()


def _paced(workers: float, group: dict[str, Any]) -> dict[str, Any]:
    first, second = group["betas"]
    return {**group, "betas": (first, second ** (1.0 / workers))}
