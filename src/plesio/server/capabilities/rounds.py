"""What comes between two rounds: somebody looks at the version, or the others wait for workers that are missing."""

from __future__ import annotations

from plesio.core.events import GivenUp, RoundBegins, RoundEnded, Short
from plesio.errors import DeadlineError
from plesio.protocol.launcher import BeginRound, RoundMade, StopRequest
from plesio.server.capability import Capability, Serving


class BetweenRounds(Capability):
    """Also of a run in which nobody looks: one that is replayed may have been looked at."""

    def __init__(self, program: Serving) -> None:
        super().__init__(program)
        self.actions = {RoundEnded: self._ended, Short: self._is_short}
        self.orders = {BeginRound: self._begins}

    def begun(self, resumed: bool, now_s: float) -> None:
        if self.program.by_round:
            self.program.receive(RoundBegins(), now_s)

    def stopped(self, now_s: float) -> None:
        if self.program.strategy.gather.least is not None:
            self.program.receive(GivenUp(), now_s)

    def unsettled(self) -> bool:
        """Somebody looks at a round, and may choose."""
        return self.program.sequencer.held is not None

    def _ended(self, ended: RoundEnded) -> None:
        time_s, version, samples = self.program.standing(self.program.now_s)
        meters = [self.program.meter.workers[one.worker] for one in ended.members]
        worked = [max(0.0, one.ready_s - one.granted_s) for one in meters]
        sites = tuple((one.worker, one.samples, took_s) for one, took_s in zip(ended.members, worked, strict=True))
        made = RoundMade(time_s=time_s, version=version, samples=samples, sites=sites, per_round=ended.per_round)
        self.program.replies.round_ended(made)

    def _begins(self, begin: BeginRound, now_s: float) -> None:
        """The last version was looked at. A checkpoint that had to wait for that is of it, with what was chosen."""
        self.program.receive(RoundBegins(begin.clients), now_s)
        self.program.keep_late(now_s)

    def _is_short(self, short: Short) -> None:
        """Too few workers are left for a version: say who is missing, and how long the others wait."""
        program, sequencer = self.program, self.program.sequencer
        silence_s = sequencer.members.silence_s
        missing = [one for one in range(sequencer.workers) if one not in sequencer.members.seats]
        who = ", ".join(f"worker {one} {self._how_it_left(one)}" for one in missing) or "nobody: some do not count"
        what = f"version {sequencer.version + 1} takes {short.least} workers, and {short.came} came (missing: {who})"
        if short.hopeless:
            program.tell(StopRequest(f"too few workers are left: {what}"))
        elif short.over:
            program.keep(program.now_s)
            why = f"{what}; the others have waited for {silence_s:g} s (timeout_s)"
            program.trouble(None, why, why, DeadlineError.__name__)
        else:
            program.trouble(None, f"{what}: the others wait, for {silence_s:g} s at most (timeout_s)")

    def _how_it_left(self, worker: int) -> str:
        meter = self.program.meter.workers[worker]
        if meter.left_s is None:
            return "has not come"
        return f"{meter.left or 'left'} {max(0.0, self.program.now_s - meter.left_s):.0f} s ago"
