"""What a worker folded and did not report before it left, where workers fold without the server.

Workers report their steps now and then (`WorkDone`), and their last steps may still be unreported when they die. The board
(`plesio.transport.board`) outlives them. From it the server learns which leased batches are in the model; the rest is leased
again, so no batch is folded twice or lost.

| workers fold into | a step of a dead worker is in the model if | unknown                                                      |
| ----------------- | ------------------------------------------ | ------------------------------------------------------------ |
| shared memory     | the worker marked it as folded             | a step it died in: leased again, and counted as `uncertain`  |
| their replicas    | a survivor completed that round            | until a survivor did, or all of them checked in again        |

A worker may complete and report a round that no survivor completes. Its batches count as done and are in no later version: they
are the `uncertain` ones of an all-reduce.
"""

from __future__ import annotations

from plesio.protocol.worker import WorkDone
from plesio.transport.board import Board

Departure = tuple[int, WorkDone, int]
"""A worker that left, what it folded and did not report, and how many batches are uncertain: folded twice, or lost."""


class Departures:
    """Accounts for the workers that leave; `in_rounds`: they fold by all-reduce."""

    def __init__(self, board: Board, workers: int, in_rounds: bool, now_s: float) -> None:
        self._board = board
        self._in_rounds = in_rounds
        self._reported = [WorkDone(lasted_s=now_s) for _ in range(workers)]  # the steps folded, the data of all
        self._present = set(range(workers))
        self._left_s: dict[int, float] = {}  # when workers left whose last step is not known yet

    def report(self, worker: int, work: WorkDone) -> None:
        reported = self._reported[worker]
        reported.steps += work.steps if self._in_rounds or work.finite else work.steps - 1
        reported.batches += work.batches
        reported.samples += work.samples
        reported.lasted_s += work.lasted_s

    def leave(self, worker: int, now_s: float) -> None:
        self._present.discard(worker)
        self._left_s[worker] = now_s

    def settled(self, concluded: bool) -> list[Departure]:
        """The departures of which all is known by now, each once. `concluded`: the workers that are here have concluded the last
        step that the others took part in."""
        known = [worker for worker in self._left_s if concluded or not self._open(worker)]
        return [self._account(worker, self._left_s.pop(worker)) for worker in known]

    def _open(self, worker: int) -> bool:
        """Whether somebody may still complete its last step."""
        return self._in_rounds and self._folded(worker) < self._board.folding_of(worker)

    def _account(self, worker: int, left_s: float) -> Departure:
        began, folded = self._board.folding_of(worker), self._folded(worker)
        batches, samples = self._board.data_of(worker, folded) if folded >= began - 1 else (0, 0)
        reported = self._reported[worker]
        if not self._in_rounds:
            uncertain = self._board.data_of(worker, began)[0] - batches
        else:
            uncertain = reported.batches - batches if folded == began - 1 < reported.steps else 0
        work = WorkDone(
            steps=max(0, folded - reported.steps),
            batches=max(0, batches - reported.batches),
            samples=max(0, samples - reported.samples),
            lasted_s=max(0.0, left_s - reported.lasted_s),
        )
        return worker, work, uncertain

    def _folded(self, worker: int) -> int:
        if not self._in_rounds or not self._present:
            return self._board.folds_of(worker)
        furthest = max(self._board.folds_of(other) for other in self._present)
        return min(furthest, self._board.folding_of(worker))
