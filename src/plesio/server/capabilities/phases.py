"""The run goes over to another phase of its strategy (`plesio.core.switching`): who asks why, and what it told."""

from __future__ import annotations

from plesio.core.events import Switch, Switched
from plesio.errors import PlesioError, StrategyError
from plesio.protocol import launcher
from plesio.protocol.journal import ELSEWHERE, JournalWriter
from plesio.protocol.worker import Answer
from plesio.server.capability import Capability, Serving


class PhaseChanges(Capability):
    def __init__(self, program: Serving) -> None:
        super().__init__(program)
        self.actions = {Switch: self._switch}
        self.orders = {launcher.SwitchRequest: self._asked}
        self._why = -1, ""  # the phase that was asked for

    @staticmethod
    def is_of(program: Serving) -> bool:
        return bool(program.sequencer.switching.whole.plan)

    def begun(self, resumed: bool, now_s: float) -> None:
        switching = self.program.sequencer.switching
        if switching.now and not resumed:  # it was asked for by now
            self.program.memory.do(Switch(switching.now, 0.0))
        if (chooses := switching.whole.chooses) is not None:
            names = [one.name for one in switching.whole.phases]
            self.program.trouble(None, chooses.in_words(names, self.program.sequencer.workers))

    def joined(self, worker: int, now_s: float) -> None:
        if self.program.meter.workers[worker].away:
            self.program.recorder.keep(JournalWriter.note, ELSEWHERE.format(worker), now_s, worker)

    def answering(self, answer: Answer) -> None:
        answer.phase = self.program.sequencer.switching.now

    def unsettled(self) -> bool:
        return self.program.sequencer.switching.following is not None

    def _asked(self, asked: launcher.SwitchRequest, now_s: float) -> None:
        """The run is to go over to a phase, as soon as all have come to where they can."""
        phase, switching = asked.phase, self.program.sequencer.switching
        known = switching.whole.phases
        if not 0 <= phase < len(known):
            names = ", ".join(f"{at} ({one.name})" for at, one in enumerate(known))
            raise StrategyError(f"phase {phase}: the run has {names}")
        if switching.following is None and phase == switching.now:
            return
        self._why = phase, asked.why
        self.program.receive(Switched(phase), now_s)
        if switching.following is None:
            self._why = -1, ""

    def _switch(self, switch: Switch) -> None:
        program, memory, was = self.program, self.program.memory, self.program.strategy
        program.meter.begin_anew()
        memory.elsewhere = frozenset(one.worker for one in program.meter.workers if one.away)
        try:
            memory.do(switch)
        except PlesioError as error:
            program.trouble(None, str(error), str(error), type(error).__name__)
            return
        program.take_strategy()
        what = f"switched from {was.name} to {program.strategy.name} at version {program.sequencer.version}"
        asked, why = self._why
        why = f": {why}" if why and asked == switch.phase else ""  # not another that was asked for meanwhile
        dropped = memory.dropped and f"; {memory.dropped}"
        program.trouble(None, f"{what} (after {switch.waited_s:.2f} s of waiting for the slowest){why}{dropped}")
        self._why = -1, ""
