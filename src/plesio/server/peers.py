"""The server's side of workers that fold by themselves, in memory that all of them share (`hogwild`).

It folds nothing. It counts the work that workers report now and then (`WorkDone`), and finds out what one folded and did not
report before it left. The board (`plesio.transport.board`) outlives a worker: from it the server learns which leased batches are
in the model, and the rest is leased again. A step that a worker died in may be in it or not: it is leased again, and told as
uncertain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plesio.core.events import Evict, Reported, Verdict
from plesio.protocol.worker import WorkDone
from plesio.server.lines import Line
from plesio.server.program import Program
from plesio.transport.board import Board


class Peers:
    """What the server does for those at `lines`."""

    def __init__(self, program: Program, lines: Sequence[Line], board: Board, now_s: float) -> None:
        self.hear: dict[type, Callable[[int, int, Any, float], None]] = {WorkDone: self._work_done}
        """What is done of each message."""
        self._program = program
        self._lines = lines
        self._board = board
        self._reported = [WorkDone(lasted_s=now_s) for _ in lines]  # the steps folded, the data of all

    def _work_done(self, worker: int, incarnation: int, work: WorkDone, now_s: float) -> None:
        add(self._reported[worker], work)
        self._count(worker, incarnation, work, sum(work.staleness.values()), now_s)

    def _count(self, worker: int, incarnation: int, work: WorkDone, versions: int, now_s: float) -> None:
        """Work was folded; it made so many `versions`."""
        program, meter = self._program, self._program.meter
        one = meter.workers[worker]
        one.reported(one.granted_s + work.lasted_s, work.steps, work.samples, work.wait_s, work.exchange_s)
        one.folded += work.steps - (not work.finite)
        one.staleness.update(work.staleness)
        meter.totals.missing_gradients += work.missing
        meter.exchanges += work.steps
        meter.answers += work.steps
        if not work.finite:
            meter.dropped(worker, Verdict.NOT_FINITE.words)
            program.non_finite.discarded(worker, f"step {one.steps}")
        if versions:
            program.made_s = now_s
        program.receive(Reported(worker, incarnation, versions, work.batches), now_s)

    def gone(self, worker: int, died: bool, now_s: float, early: bool = False) -> None:
        """It finished or died: count what it folded and did not report, and take leave of it."""
        self._settle(worker, now_s)
        self._program.left(worker, self._lines[worker].incarnation, died, now_s, early)

    def _settle(self, worker: int, now_s: float) -> None:
        work, uncertain = unreported(self._board, worker, self._reported[worker], now_s)
        if work.steps:
            self._count(worker, self._lines[worker].incarnation, work, work.steps, now_s)
        if uncertain:
            why = "died while it wrote into shared memory: batches possibly folded twice"
            self._program.trouble(worker, f"worker {worker} {why}: {uncertain}")

    def tick(self, now_s: float) -> None:
        """Time went by: who was silent for too long is evicted, before the sequencer does it by itself."""
        for seat in self._program.sequencer.members.left_over(now_s):
            self._settle(seat.worker, now_s)
            incarnation = self._lines[seat.worker].incarnation
            self._program.actions[Evict](Evict(seat.worker, incarnation, now_s - seat.heard_s))
            self._program.left(seat.worker, incarnation, died=False, now_s=now_s)


def add(reported: WorkDone, work: WorkDone) -> None:
    """To what a worker reported: the steps that were folded, and the data of all."""
    reported.steps += work.steps if work.finite else work.steps - 1
    reported.batches += work.batches
    reported.samples += work.samples
    reported.lasted_s += work.lasted_s


def unreported(board: Board, worker: int, reported: WorkDone, left_s: float) -> tuple[WorkDone, int]:
    """What a worker folded and did not report before it left, and how many batches may be folded or not."""
    began, folded = board.folding_of(worker), board.folds_of(worker)
    batches, samples = board.data_of(worker, folded) if folded >= began - 1 else (0, 0)
    work = WorkDone(
        steps=max(0, folded - reported.steps),
        batches=max(0, batches - reported.batches),
        samples=max(0, samples - reported.samples),
        lasted_s=max(0.0, left_s - reported.lasted_s),
    )
    return work, board.data_of(worker, began)[0] - batches
