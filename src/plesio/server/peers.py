"""The server's side of workers that fold among themselves: in shared memory, or by all-reduce.

It folds nothing. It counts the work that workers report, and finds out what the departed did not (`departures`). Before each
all-reduce workers check in on their doorbells; `plesio.core.rounds` decides who takes part. A new group is told to its
members on their channels. Whoever ends learns where to leave its weights (`last_weights`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from plesio.core.events import Evict, Reported, Verdict
from plesio.core.rounds import Call, RollCall
from plesio.memory.blocks import Blocks
from plesio.protocol.worker import CheckedOut, CheckIn, CheckOut, Regrouped, RollCalled, WorkDone
from plesio.server.departures import Departures
from plesio.server.lines import Line
from plesio.server.program import Program
from plesio.transport.collective import rendezvous_store
from plesio.transport.doorbell import write_answer

DISMISS_S = 1.0
"""How long workers that check in after the end of the run wait for one whose step lasts longer."""


class Peers:
    """What the server does for them; one may keep the others waiting for `silence_s`, and groups meet at `host`."""

    def __init__(
        self, program: Program, lines: Sequence[Line], blocks: Blocks, silence_s: float, host: str, now_s: float
    ) -> None:
        self.hear: dict[type, Callable[[int, int, Any, float], None]] = {
            WorkDone: self._work_done,
            CheckIn: self._checked_in,
            CheckOut: self._checked_out,
        }
        """What is done of each message."""
        self._program = program
        self._lines = lines
        self._board = blocks.board
        self._last_weights = blocks.last_weights
        self._by_collective = blocks.mirrored
        self._silence_s = silence_s
        self._departures = Departures(blocks.board, len(lines), blocks.mirrored, now_s)
        self._roll = RollCall()  # of nobody, where nobody checks in
        self._came: dict[int, CheckIn] = {}  # what each checked in with
        if self._by_collective:
            self._store = rendezvous_store(host)
            for line in lines:
                if not line.gone:
                    self._roll.join(line.worker, now_s)

    def _work_done(self, worker: int, incarnation: int, work: WorkDone, now_s: float) -> None:
        self._departures.report(worker, work)
        versions = work.version - self._program.version if self._by_collective else sum(work.staleness.values())
        self._reported(worker, incarnation, work, max(0, versions), now_s)

    def _reported(self, worker: int, incarnation: int, work: WorkDone, versions: int, now_s: float) -> None:
        """Work was folded; it made so many `versions`."""
        program, meter = self._program, self._program.meter
        one = meter.workers[worker]
        one.reported(one.granted_s + work.lasted_s, work.steps, work.samples, work.wait_s, work.exchange_s)
        one.folded += work.steps - (not work.finite)
        one.staleness.update(work.staleness)
        meter.missing_gradients += work.missing
        meter.exchanges += work.steps
        meter.answers += work.steps
        if not work.finite:
            meter.dropped(worker, Verdict.NOT_FINITE.words)
            program.non_finite.discarded(worker, f"step {one.steps}")
        if versions:
            program.made_s = now_s
        program.receive(Reported(worker, incarnation, versions, work.batches), now_s)

    def _checked_in(self, worker: int, incarnation: int, check_in: CheckIn, now_s: float) -> None:
        if not check_in.intact:
            self._board.broken = self._roll.generation
        self._board.folded(worker, check_in.round)
        self._came[worker] = check_in
        reached = check_in.round, check_in.version
        self._roll.arrive(worker, reached, check_in.intact, check_in.settings, now_s)
        self._call(now_s)

    def _checked_out(self, worker: int, incarnation: int, check_out: CheckOut, now_s: float) -> None:
        self._board.folded(worker, check_out.round)
        if check_out.version > self._program.version:  # it took over a step that nobody lived to report
            self._work_done(worker, incarnation, WorkDone(version=check_out.version), now_s)
        place = self._last_weights.place(worker, check_out.version)
        write_answer(self._lines[worker].answer, CheckedOut(place is not None), place or 0)

    # Who leaves

    def finished(self, worker: int, now_s: float) -> None:
        self._last_weights.handed_over(worker)
        self.go_on_without(worker, died=False, now_s=now_s)

    def gone(self, worker: int, died: bool, now_s: float) -> None:
        self._departures.leave(worker, now_s)
        if died:
            self._last_weights.died(worker)
        self.go_on_without(worker, died, now_s)
        self.settle(concluded=False)

    def go_on_without(self, worker: int, died: bool, now_s: float) -> None:
        if died and worker in self._roll.members:  # processes that it started may hold its connections
            self._board.broken = self._roll.generation
        self._roll.leave(worker, died)
        self._call(now_s)

    def settle(self, concluded: bool) -> None:
        """Take leave of the departed whose folds are known; what they did not fold is leased to others. `concluded`: the live
        workers have concluded the last step that the departed took part in."""
        for worker, work, uncertain in self._departures.settled(concluded):
            line, now_s = self._lines[worker], time.monotonic()
            if work.steps:
                versions = 0 if self._by_collective else work.steps
                self._reported(worker, line.incarnation, work, versions, now_s)
            if uncertain:
                what = "died while it wrote into shared memory: batches possibly folded twice"
                if self._by_collective:
                    what = "left after a step that no other worker completed: batches counted as done but in no version"
                self._program.trouble(worker, f"worker {worker} {what}: {uncertain}")
            self._program.left(worker, line.incarnation, not line.finished, now_s)

    def tick(self, now_s: float) -> None:
        """Time went by: who kept the others waiting for too long is evicted."""
        if self._program.stopping and self._roll.waited_s(now_s) > DISMISS_S:
            self._roll.dismiss()
            self._call(now_s)
        left_over = self._program.sequencer.members.left_over(now_s)  # before the sequencer evicts them by itself
        silent = [(seat.worker, now_s - seat.heard_s) for seat in left_over]
        for worker, silent_s in [*self._roll.silent(now_s, self._silence_s), *silent]:
            self._departures.leave(worker, now_s)
            self.settle(concluded=True)
            incarnation = self._lines[worker].incarnation
            self._program.actions[Evict](Evict(worker, incarnation, silent_s))
            self._program.left(worker, incarnation, died=False, now_s=now_s)

    def _call(self, now_s: float) -> None:
        outcome = self._roll.outcome(now_s)
        if outcome is None:
            return
        answer = RollCalled(outcome.call, outcome.settings_differ, self._program.stopping)
        if outcome.call is Call.GO:  # whoever dies from here on, its step may be in the model
            for worker in outcome.workers:
                came = self._came[worker]
                self._board.folding(worker, came.round + 1, came.batches, came.samples)
        for worker in outcome.workers:
            write_answer(self._lines[worker].answer, answer)
            if outcome.call is Call.REGROUP:
                self._lines[worker].say(Regrouped(outcome, self._store.port))
        self.settle(concluded=True)

    # The end

    def lost_weights(self) -> str:
        """Why there are none: the weights of an all-reduce end with the last worker, unless that hands them over."""
        version, whole = self._program.version, self._last_weights.whole
        handed_over = whole.version if whole is not None else 0
        if not self._by_collective or handed_over >= version:
            return ""
        died = f"the workers that held version {version} ended before they could hand it over"
        if not handed_over:
            return f"{died}, and with them the weights; steps longer than the time to stop have the same effect"
        self._program.trouble(None, f"{died}: the weights are those of version {handed_over}")
        return ""
