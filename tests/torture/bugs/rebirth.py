"""Bugs of the server that is reborn: what is put on record too early or not at all, and what is told again or not."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from plesio.core.events import Leased
from plesio.system.recovery_log import ENTRY, LATEST, READ, READ_MOST
from plesio.transport.channel import readable
from torture.bugs.planting import BUGS, bug
from torture.reborn import Log, Reborn, Survivor
from torture.sessions.envelopes import Answer, FromServer
from torture.sessions.session import News, WorkerSession

_before = set(BUGS)


def nothing() -> None:
    """What is put on record before it is done."""


# The log


@bug("acknowledged before copied")
class _RecordsFirst(Reborn):
    def _change(self, change: Callable[[], None]) -> None:
        self._effects += 1
        is_new = not self.log.recovering
        self.log.once(nothing)
        if is_new:
            self.survivor.do(self._effects, change)


@bug("log without mail")
class _ReadsFirst(Log):
    def read(self, descriptor: int) -> bytes:
        if self.recovering:
            return super().read(descriptor)
        data = os.read(descriptor, READ_MOST) if readable(descriptor, 0.0) else b""
        entry, begin = ENTRY.pack(len(data), READ) + data, self._begins + self._at
        self._map[begin : begin + len(entry)] = entry
        self._at += len(entry)
        self._words[self._reaches] = self._at
        return data


@bug("a number is used for two spares")
class _CountsFromItsOwn(Log):
    def begin(self) -> None:
        self._words[LATEST] = self.generation
        super().begin()


# Memory


@bug("header before state")
class _DoneBefore(Survivor):
    def do(self, number: int, change: Callable[[], None]) -> None:
        self.under_way = 0
        self._boundary()
        change()
        self._boundary()


@bug("under way before it lies twice")
class _BeginsFirst(Survivor):
    def _begin(self, number: int) -> None:
        self.under_way = number
        self._boundary()
        super()._begin(number)


@bug("half an effect is not undone")
class _GoesOn(Survivor):
    def _undo(self) -> None:
        pass


# What is told


@bug("answer not repeated")
class _SaysItWasSent(Reborn):
    def _send(self, letter: FromServer) -> None:
        is_new = not self.log.recovering
        self.log.once(nothing)
        if is_new:
            self._send_now(letter)


@bug("repeat not dropped")
class _TakesRepeats(WorkerSession):
    """The answer before is taken for the next one's."""

    def receive(self, message: FromServer) -> News | None:
        if (
            isinstance(message, Answer)
            and isinstance(message.effect, Leased)
            and message.incarnation == self.incarnation
            and message.serial == self._serial - 1
        ):
            message = msgspec.structs.replace(message, serial=self._serial)
        return super().receive(message)


@bug("time is read anew")
class _ReadsTheClock(Reborn):
    def now_s(self) -> float:
        return self.agenda.now_s * self.clock.rate + self.clock.offset_s


REBIRTH_BUGS = [name for name in BUGS if name not in _before]
"""Those that only runs whose server is reborn show."""
