"""Hogwild!: the optimizers of all workers step in place, on parameters in shared memory."""

from __future__ import annotations

import time

from torch.optim import Optimizer

from plesio.core.events import Verdict
from plesio.errors import StopRun
from plesio.protocol.worker import Beginning, Farewell, WorkDone
from plesio.strategy import Strategy
from plesio.tensors.outer import scale_for
from plesio.transport.board import Board
from plesio.transport.doorbell import Doorbell
from plesio.worker.data_use import DataUse
from plesio.worker.exchanges.exchange import REPORT_S, Exchange
from plesio.worker.pacer import Pacer
from plesio.worker.replica import Replica
from plesio.worker.state import WorkerState
from plesio.worker.warn import warn_not_finite


class SharedMemoryExchange(Exchange):
    """One worker's part: its optimizer steps on everybody's parameters."""

    shares_parameters = True

    def __init__(
        self,
        strategy: Strategy,
        workers: int,
        state: WorkerState,
        optimizer: Optimizer,
        replica: Replica,
        doorbell: Doorbell,
        board: Board,
        pacer: Pacer,
        used: DataUse,
        timeout_s: float,
    ) -> None:
        share = strategy.outer.scale(1, workers)
        self._scale = scale_for(type(optimizer), share, share)
        self._state = state
        self._optimizer = optimizer
        self._replica = replica
        self._doorbell = doorbell
        self._board = board
        self._pacer = pacer
        self._used = used
        self._timeout_s = timeout_s
        self._read_at = 0
        self._folds = 0
        self._reported_batches = self._reported_samples = 0
        self._done = WorkDone()
        self._reported_s = 0.0

    def begin(self) -> None:
        """Wait until all workers are ready."""
        self._doorbell.answer(Beginning, self._timeout_s, 0, 0)
        self._replica.adopt(self._doorbell.buffer)
        self._reported_s = time.monotonic()
        self._read_at = self._board.folds
        self._pacer.begin()

    def step(self) -> None:
        """One step of the training loop."""
        if self._state.stopped:
            raise StopRun("the run is over")
        self._pacer.rest(time.sleep)
        finite = self._replica.fill_slot()
        if finite:
            self._fold()
        self._state.steps += 1
        self._state.number += 1  # the loader seeds by it; to seed at every step would take as long as a small one
        self._done.steps += 1
        self._done.batches, self._done.samples = self._used.batches, self._used.samples
        self._done.missing += self._replica.missing
        self._state.stopped = self._board.stopped
        if not finite or self._state.stopped or time.monotonic() - self._reported_s > REPORT_S:
            self.report(finite)
        self._pacer.begin()

    def _fold(self) -> None:
        """Step in place at this worker's share of the learning rate; what others folded meanwhile is the staleness."""
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * self._scale
        staleness = self._board.folds - self._read_at
        self._folds += 1
        batches, samples = self._reported_batches + self._used.batches, self._reported_samples + self._used.samples
        self._board.folding(self._state.worker, self._folds, batches, samples)
        self._optimizer.step()
        self._board.folded(self._state.worker, self._folds)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._read_at = self._board.folds
        self._done.folded(staleness)
        self._state.staleness, self._state.version = staleness, self._read_at

    def report(self, finite: bool = True) -> None:
        """Tell the server what was done since last told."""
        if not self._done.steps:
            return
        if not finite:
            self._state.discarded += 1
            self._state.verdict = Verdict.NOT_FINITE
            warn_not_finite(self._state.worker)
        done, self._done = self._done, WorkDone()
        self._used.batches -= done.batches  # what is left is of a step that is not done yet
        self._used.samples -= done.samples
        self._reported_batches += done.batches
        self._reported_samples += done.samples
        done.versions, done.finite = sum(done.staleness.values()), finite
        now_s = time.monotonic()
        done.lasted_s, self._reported_s = now_s - self._reported_s, now_s
        self._doorbell.send(done)

    def end(self) -> None:
        """The training function returned."""
        self.report()
        self._doorbell.send(Farewell())
