"""Hogwild!: the optimizers of all workers step in place, on parameters in shared memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from plesio.errors import StopRun
from plesio.protocol.worker import Farewell
from plesio.tensors.optimizer_spec import check_has_rate
from plesio.tensors.rate_scale import scale_for
from plesio.tensors.several import parts_of
from plesio.worker.exchanges.among_peers import PeerExchange


@dataclass(eq=False)
class SharedMemoryExchange(PeerExchange):
    """One worker's part: its optimizer steps on everybody's parameters, at `share` of its learning rate."""

    share: float
    shares_parameters = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in parts_of(self.optimizer):
            check_has_rate(one)
        self._scales = [
            scale_for(type(one), self.share, self.share) for one in parts_of(self.optimizer) for _ in one.param_groups
        ]
        self._read_at = 0
        self._folds = 0

    def begin(self) -> None:
        super().begin()
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

    def end(self) -> None:
        self.report()
        self.doorbell.send(Farewell())
