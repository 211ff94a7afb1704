"""What a worker folded and did not report before it left, where workers fold without the server.

Workers report their steps now and then (`WorkDone`), and their last steps may still be unreported when they die. The board
(`plesio.transport.board`) outlives them. From it the server learns which leased batches are in the model; the rest is leased
again, so no batch is folded twice or lost.

| workers fold into | a step of a dead worker is in the model if | unknown                                                      |
| ----------------- | ------------------------------------------ | ------------------------------------------------------------ |
| shared memory     | the worker marked it as folded             | a step it died in: leased again, and counted as `uncertain`  |
| their replicas    | a survivor completed that round            | until a survivor did, or all of them checked in again        |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from plesio.protocol.worker import WorkDone
from plesio.transport.board import Board


class Departure(NamedTuple):
    """`worker` left. `work`: what it folded and did not report; `uncertain`: batches of the step it died in."""

    worker: int
    work: WorkDone
    uncertain: int


@dataclass(slots=True)
class _Reported:
    """What the server heard of one worker: until when, the steps it folded, and the data of all its steps."""

    until_s: float
    steps: int = 0
    batches: int = 0
    samples: int = 0


class Departures:
    """Accounts for the workers that leave; `in_rounds`: they fold by all-reduce.

    >>> from plesio.tensors.arena import PAGE
    >>> from plesio.transport.memory import SharedBlock
    >>> board = Board(SharedBlock.create(PAGE, "the board"), workers=2)
    >>> departures = Departures(board, workers=2, in_rounds=True, now_s=0.0)
    >>> board.folding(0, 1, batches=1, samples=8)
    >>> departures.leave(0, now_s=2.5); departures.settled(concluded=False)
    []
    >>> board.folded(1, 1); [one.work.batches for one in departures.settled(concluded=False)]
    [1]
    """

    def __init__(self, board: Board, workers: int, in_rounds: bool, now_s: float) -> None:
        self._board = board
        self._in_rounds = in_rounds
        self._reported = [_Reported(now_s) for _ in range(workers)]
        self._present = set(range(workers))
        self._left_s: dict[int, float] = {}  # when workers left whose last step is not known yet

    def report(self, worker: int, work: WorkDone) -> None:
        """`worker` reported that work."""
        reported = self._reported[worker]
        reported.steps += work.steps if self._in_rounds or work.finite else work.steps - 1
        reported.batches += work.batches
        reported.samples += work.samples
        reported.until_s += work.lasted_s

    def leave(self, worker: int, now_s: float) -> None:
        """`worker` is gone."""
        self._present.discard(worker)
        self._left_s[worker] = now_s

    def settled(self, concluded: bool) -> list[Departure]:
        """The departures of which all is known by now, each once.

        `concluded`: the workers that are here have concluded the last step that the others took part in.
        """
        known = [worker for worker in self._left_s if concluded or not self._open(worker)]
        return [self._account(worker, self._left_s.pop(worker)) for worker in known]

    def _open(self, worker: int) -> bool:
        """Whether somebody may still complete its last step."""
        return self._in_rounds and self._folded(worker) < self._board.folding_of(worker)

    def _account(self, worker: int, left_s: float) -> Departure:
        began, folded = self._board.folding_of(worker), self._folded(worker)
        batches, samples = self._board.data_of(worker, folded) if folded >= began - 1 else (0, 0)
        uncertain = 0 if self._in_rounds else self._board.data_of(worker, began)[0] - batches
        reported = self._reported[worker]
        steps = max(0, folded - reported.steps)
        work = WorkDone(
            steps=steps,
            batches=max(0, batches - reported.batches),
            samples=max(0, samples - reported.samples),
            lasted_s=max(0.0, left_s - reported.until_s),
        )
        return Departure(worker, work, uncertain)

    def _folded(self, worker: int) -> int:
        """The last step of `worker` that is in the model."""
        if not self._in_rounds or not self._present:
            return self._board.folds_of(worker)
        furthest = max(self._board.folds_of(other) for other in self._present)
        return min(furthest, self._board.folding_of(worker))
