"""Hogwild!: the optimizers of all workers step in place, on parameters in shared memory. Now and then the server is told."""

from __future__ import annotations

import time
from dataclasses import dataclass

from plesio.errors import StopRun
from plesio.protocol.worker import Beginning, Farewell, WorkDone
from plesio.tensors.optimizer_spec import check_has_rate
from plesio.tensors.rate_scale import scale_for
from plesio.tensors.several import parts_of
from plesio.transport.board import Board
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.exchanges.making import Making
from plesio.worker.replicas.replica import SharedReplica
from plesio.worker.warn import warn_not_finite

REPORT_S = 0.05  # how often a worker reports its work


@dataclass(eq=False)
class SharedMemoryExchange(Exchange):
    """One worker's part: its optimizer steps on everybody's parameters, at `share` of its learning rate."""

    board: Board
    share: float
    shares_parameters = True

    def __post_init__(self) -> None:
        for one in parts_of(self.optimizer):
            check_has_rate(one)
        self._scales = [
            scale_for(type(one), self.share, self.share) for one in parts_of(self.optimizer) for _ in one.param_groups
        ]
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
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate, scale in zip(self.optimizer.param_groups, rates, self._scales, strict=True):
            group["lr"] = rate * scale
        staleness = self.board.folds - self._read_at
        self._folds += 1
        batches, samples = self._batches + self.used.batches, self._samples + self.used.counted
        self.board.folding(self.state.worker, self._folds, batches, samples)
        self.move()
        self.board.folded(self.state.worker, self._folds)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._read_at = self.board.folds
        self._done.folded(staleness)
        self.state.staleness, self.state.version = staleness, self._read_at

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
        self.doorbell.send(Farewell(self.used.left_over))


def build(made: Making) -> SharedMemoryExchange | None:
    """Where workers fold among themselves."""
    board = made.place.board
    if board is None:
        return None
    replica, share = SharedReplica(*made.own, made.place.ring.first.read), made.strategy.outer.scale(1, made.workers)
    return SharedMemoryExchange(made.state, made.optimizer, replica, *made.line, board, share)
