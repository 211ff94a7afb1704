"""Bugs of a strategy that becomes another one: what is lost, or begins too early, at a switch."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from plesio.core.events import Effect, Event, Joined
from plesio.core.membership import Membership
from plesio.core.sequencer import Sequencer, SequencerState
from torture.bugs.planting import BUGS, bug
from torture.reborn import Reborn

_before = set(BUGS)


@bug("another phase does not wait for everybody")
class _Hurries(Sequencer):
    def _settle(self) -> None:
        super()._settle()
        if self.draining and self.members.waiting:
            self._switch()


@bug("what is pending is dropped at a switch")
class _DropsPending(Sequencer):
    def _switch(self) -> None:
        self._pending.clear()
        super()._switch()


class _Goes(Membership):
    def begin_anew(self, version: int) -> None:
        clocks = [seat.clock for seat in self.seats.values()]
        super().begin_anew(version)
        for seat, clock in zip(self.seats.values(), clocks, strict=True):
            seat.clock = clock


@bug("clocks go on over a switch")
class _KeepsClocks(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.members = _Goes(self.members.silence_s)


@bug("the phase is missing from the checkpoint")
class _ForgetsPhase(Sequencer):
    def state(self) -> SequencerState:
        return replace(super().state(), phase=0)


# Where the server's process dies, too


@bug("a switch is not done again")
class _TakesItFromTheLog(Reborn):
    def _lay_out(self, phase: int) -> None:
        self.log.once(partial(super()._lay_out, phase))


@bug("a switch keeps the spare of before")
class _KeepsItsSpare(Reborn):
    def _saw(self, event: Event, effects: list[Effect]) -> None:
        wanted = self._wants_spare or type(event) is Joined
        super()._saw(event, effects)
        self._wants_spare = wanted


PHASE_BUGS = [name for name in BUGS if name not in _before]
"""Those that only runs with several phases show."""
