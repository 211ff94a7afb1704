"""The server's part in an all-reduce: the rendezvous. It folds nothing, but says who takes part in each one.

Workers check in on their doorbells; what they are answered is `plesio.core.rounds`'s to decide. A new group is told to
its members on their channels: who they are, and where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plesio.core.rounds import Call, Outcome, RollCall
from plesio.protocol.worker import CheckIn, Regrouped, RollCalled
from plesio.transport.board import Board
from plesio.transport.collective import RendezvousStore
from plesio.transport.doorbell import write_answer

DISMISS_S = 1.0
"""How long workers that check in after the end of the run wait for one whose step lasts longer."""


class Rendezvous:
    """Where the workers of one run check in before each collective, and are told who is in it.

    Args:
        answers: the descriptor by which each worker is answered.
        board: where all see that a group is broken.
        tell: sends a message to a worker.
        progress: gives the version, the mirrors made so far, and whether the run is to end.
        silence_s: how long one may keep the others waiting.
        now_s: the time, by the clock that all later times are told by.
    """

    def __init__(
        self,
        answers: Mapping[int, int],
        board: Board,
        tell: Callable[[int, object], None],
        progress: Callable[[], tuple[int, int, bool]],
        silence_s: float,
        now_s: float,
    ) -> None:
        self._answers = answers
        self._board = board
        self._tell = tell
        self._progress = progress
        self._silence_s = silence_s
        self._roll = RollCall()
        self._store = RendezvousStore()
        for worker in answers:
            self._roll.join(worker, now_s)

    def leave(self, worker: int, died: bool, now_s: float) -> bool:
        """A worker finished or died: the others go on without it. Whether they were told what to do.

        Neighbours of one that died may not notice: processes that it started hold its connections for as long as they live.
        """
        if died and worker in self._roll.members:
            self._board.break_group(self._roll.generation)
        self._roll.leave(worker, died)
        return self._call(now_s)

    def arrived(self, worker: int, check_in: CheckIn, now_s: float) -> bool:
        """A worker checked in. Whether all were told what to do."""
        if not check_in.intact:
            self._board.break_group(self._roll.generation)
        reached = check_in.round, check_in.version
        self._roll.arrive(worker, reached, check_in.intact, check_in.settings, now_s)
        return self._call(now_s)

    def tick(self, now_s: float) -> list[tuple[int, float]]:
        """Workers that kept the others waiting for too long, and for how many seconds they were silent."""
        if self._progress()[2] and self._roll.waited_s(now_s) > DISMISS_S:
            self._roll.dismiss()
            self._call(now_s)
        return self._roll.silent(now_s, self._silence_s)

    def _call(self, now_s: float) -> bool:
        outcome = self._roll.outcome(now_s)
        if outcome is None:
            return False
        for worker in outcome.workers:
            self._answer(worker, outcome)
        return True

    def _answer(self, worker: int, outcome: Outcome) -> None:
        version, mirrors, stopping = self._progress()
        write_answer(self._answers[worker], RollCalled(outcome.call, not outcome.same_settings, stopping))
        if outcome.call is Call.REGROUP:
            source = -1 if outcome.source is None else outcome.source
            self._tell(
                worker,
                Regrouped(
                    generation=outcome.generation,
                    members=outcome.workers,
                    port=self._store.port,
                    source=source,
                    intact=outcome.intact,
                    version=version,
                    mirrors=mirrors,
                ),
            )
