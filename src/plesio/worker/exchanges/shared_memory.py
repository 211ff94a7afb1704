"""Hogwild!: the optimizers of all workers step in place, on parameters in shared memory. Now and then the server is told."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from plesio.errors import StopRun
from plesio.protocol.worker import Beginning, Farewell, WorkDone
from plesio.tensors.optimizer_spec import check_has_rate
from plesio.tensors.rate_scale import scale_for
from plesio.tensors.several import parts_of
from plesio.tensors.small_step import takes_small_step
from plesio.transport.board import Board
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.exchanges.making import Making
from plesio.worker.replicas.replica import SharedReplica
from plesio.worker.warn import warn_not_finite

REPORT_S = 0.05  # how often a worker reports its work
FUSED_LEAST = 1 << 17
"""Numbers in a tensor, on average, from which on a step takes as long as it moves memory: torch's fused step moves each once."""


@dataclass(eq=False)
class SharedMemoryExchange(Exchange):
    """One worker's part: its optimizer steps on everybody's parameters, at `share` of its learning rate."""

    board: Board
    share: float
    shares_parameters = True

    def __post_init__(self) -> None:
        for one in parts_of(self.optimizer):
            check_has_rate(one)
        groups = [(one, group) for one in parts_of(self.optimizer) for group in one.param_groups]
        self._scales = [scale_for(type(one), self.share, self.share) for one, _ in groups]
        self._fused = [one if _gains_by_fusing(one, group) else None for one, group in groups]
        self._read_at = 0
        self._folds = 0
        self._batches = self._samples = 0  # that its steps used
        self._done = WorkDone()
        self._reported_s = 0.0

    def begin(self) -> None:
        self.doorbell.answer(Beginning, self.timeout_s, 0, 0)
        self.replica.adopt(self.doorbell.shown(self.replica.ring))
        self._reported_s = time.monotonic()
        self._read_at = self.board.folds
        self.pacer.begin()

    def step(self) -> None:
        if self.state.stopped:
            raise StopRun("the run is over")
        self.pacer.rest(time.sleep)
        finite = self.replica.fill_slot()
        if finite:
            self._fold()
        self._count(*self.used(), self.replica.missing)
        self.state.number += 1  # the loader seeds by it; to seed at every step would take as long as a small one
        self.state.stopped = self.board.stopped > 0
        self._report_step(finite)
        self.pacer.begin()

    def _fold(self) -> None:
        """Step in place at this worker's share of the learning rate; what others folded meanwhile is the staleness."""
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate, scale, fused in zip(groups, rates, self._scales, self._fused, strict=True):
            group["lr"] = rate * scale
            if fused is not None:
                group["fused"] = _can_fuse(fused, group)
        staleness = self.board.folds - self._read_at
        self._folds += 1
        batches, samples = self._batches + self.used.batches, self._samples + self.used.counted
        self.board.folding(self.state.worker, self._folds, batches, samples)
        self.move()
        self.board.folded(self.state.worker, self._folds)
        for group, rate, fused in zip(groups, rates, self._fused, strict=True):
            group["lr"] = rate
            if fused is not None:
                group["fused"] = None
        self._read_at = self.board.folds
        self._done.folded(staleness)
        self.state.staleness, self.state.version = staleness, self._read_at

    def move(self) -> None:
        if self._closure is not None or not takes_small_step(self.part):
            super().move()
        else:
            self.moved()

    def _count(self, batches: int, samples: int, missing: int) -> None:
        done = self._done
        self.state.steps += 1
        done.steps += 1
        done.batches += batches
        done.samples += samples
        done.missing += missing
        self._batches += batches
        self._samples += samples

    def _report_step(self, finite: bool) -> None:
        """Tell the server, if it is time or the step was not finite."""
        if not finite:
            self.state.discarded += 1
            warn_not_finite(self.state.worker)
        if not finite or self.state.stopped or time.monotonic() - self._reported_s > REPORT_S:
            self.report(finite)

    def report(self, finite: bool = True) -> None:
        if not self._done.steps:
            return
        done, self._done = self._done, WorkDone()
        done.finite = finite
        now_s = time.monotonic()
        done.lasted_s, self._reported_s = now_s - self._reported_s, now_s
        self.doorbell.send(done)

    def end(self) -> None:
        self.report()
        self.doorbell.send(Farewell(self.used.left_over, self.state.early))


def _gains_by_fusing(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether torch's fused step is quicker, and the user left open which one to take."""
    if type(optimizer) not in (SGD, Adam, AdamW) or not group.get("momentum", True):
        return False
    chosen = any(group.get(way) is not None for way in ("foreach", "fused"))
    chosen = chosen or any(group.get(way) for way in ("capturable", "differentiable"))
    sizes = [one.numel() for one in group["params"] if one.is_floating_point()]
    return not chosen and len(sizes) == len(group["params"]) and sum(sizes) >= FUSED_LEAST * max(1, len(sizes))


def _can_fuse(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether torch's fused step does what its other ways do. On the CPU it reads all tensors in the order of memory, whatever
    their strides; and momentum has to be there of all parameters that move, or of none."""
    moved = [one for one in group["params"] if one.grad is not None]
    kept = [optimizer.state.get(one, {}) for one in moved]
    read = [*moved, *(one.grad for one in moved), *(value for state in kept for value in state.values())]
    ordered = all(one.layout is torch.strided and one.is_contiguous() for one in read if isinstance(one, torch.Tensor))
    return ordered and len({state.get("momentum_buffer") is None for state in kept}) < 2


def build(made: Making) -> SharedMemoryExchange | None:
    """Where workers fold among themselves."""
    board = made.place.board
    if board is None:
        return None
    replica, share = SharedReplica(*made.own, made.place.ring.first.read), made.strategy.outer.scale(1, made.workers)
    return SharedMemoryExchange(made.state, made.optimizer, replica, *made.line, board, share)
