"""What the exchanges of workers that fold among themselves have in common: the server is told of their work now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from plesio.protocol.worker import Beginning, FromWorker, WorkDone
from plesio.transport.board import Board
from plesio.worker.exchanges.exchange import Bell, Exchange
from plesio.worker.warn import warn_not_finite

REPORT_S = 0.05  # how often a worker reports its work


class PeerBell(Bell, Protocol):
    """A worker's line to a server that sees what the worker wrote into the ring."""

    def show(self, message: FromWorker) -> None:
        """Tell the server of it."""


@dataclass(eq=False)
class PeerExchange(Exchange):
    """One worker's part; the optimizer steps here."""

    doorbell: PeerBell
    board: Board

    def __post_init__(self) -> None:
        self._version = 0  # of a replica of its own
        self._batches = self._samples = 0  # that its steps used
        self._done = WorkDone()
        self._reported_s = 0.0

    def begin(self) -> None:
        self.doorbell.answer(Beginning, self.timeout_s, 0, 0)
        self.replica.adopt(self.doorbell.shown(self.replica.ring))
        self.replica.settle()
        self._reported_s = time.monotonic()

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
        done.version, done.finite = self._version, finite
        now_s = time.monotonic()
        done.lasted_s, self._reported_s = now_s - self._reported_s, now_s
        self.doorbell.send(done)
