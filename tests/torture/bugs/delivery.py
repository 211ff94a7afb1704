"""Bugs of delivery: what is not done exactly once, and who is wrongly a member, or is not."""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from plesio.core.events import Event, Grant, Leased, LeaseWanted, Pushed, Ticked
from plesio.core.membership import Membership, Seat
from plesio.core.sequencer import Sequencer
from torture.bugs.planting import bug
from torture.server import Server
from torture.sessions.envelopes import Answer, Beat, FromServer, FromWorker, Request
from torture.sessions.service import Service
from torture.sessions.session import News, WorkerSession

# Exactly once


def is_push(letter: FromWorker | None) -> TypeGuard[Request]:
    """Whether a contribution is sent."""
    return isinstance(letter, Request) and isinstance(letter.event, Pushed)


@bug("no dedupe")
class _Forgetful(Service):
    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        if is_push(letter) and self._peers[letter.event.worker].incarnation == letter.event.incarnation:
            self._peers[letter.event.worker].serial = letter.serial - 1
        return super().receive(letter, now_s)


@bug("no dedupe")
class _AdmitsAll(Sequencer):
    def _pushed(self, event: Pushed) -> None:
        seat = self.members.seat(event.worker, event.incarnation)
        if seat is not None:
            seat.next_number = event.number
        super()._pushed(event)


@bug("a retry bears a new number")
class _CountsRetries(WorkerSession):
    def tick(self, now_s: float) -> FromWorker | None:
        letter = super().tick(now_s)
        if not is_push(letter):
            return letter
        self._serial += 1
        self.number += 1
        event = msgspec.structs.replace(letter.event, number=self.number)
        self.outstanding = msgspec.structs.replace(letter, event=event, serial=self._serial)
        return self.outstanding


@bug("the answer to a repeated request is not repeated")
class _SaysItOnce(Service):
    def _repeat(self, worker: int, serial: int, peer: Any) -> None:
        pass


@bug("the answer to an earlier request is taken for the last one's")
class _TakesAnyAnswer(WorkerSession):
    def receive(self, letter: FromServer) -> News | None:
        if (
            isinstance(letter, Answer)
            and isinstance(letter.effect, Grant)
            and letter.incarnation == self.incarnation
            and letter.serial > 0
        ):
            letter = msgspec.structs.replace(letter, serial=self._serial)
        return super().receive(letter)


@bug("a request for data that is repeated gets other data")
class _LeasesAnew(Service):
    def _repeat(self, worker: int, serial: int, peer: Any) -> None:
        if type(peer.answer) is not Leased:
            super()._repeat(worker, serial, peer)

    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        if isinstance(letter, Request) and isinstance(letter.event, LeaseWanted):
            peer = self._peers[letter.event.worker]
            if (letter.serial, type(peer.answer)) == (peer.serial, Leased):
                peer.serial -= 1
        return super().receive(letter, now_s)


@bug("nothing is sent again")
class _NeverRetries(WorkerSession):
    def tick(self, now_s: float) -> FromWorker | None:
        letter = super().tick(now_s)
        return letter if type(letter) is Beat else None


# Who is a member


@bug("an old incarnation is listened to")
class _ListensToGhosts(Service):
    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        if isinstance(letter, Request) and isinstance(letter.event, (Pushed, LeaseWanted)):
            peer = self._peers[letter.event.worker]
            if peer.seated and letter.event.incarnation < peer.incarnation and letter.serial == peer.serial + 1:
                event = msgspec.structs.replace(letter.event, incarnation=peer.incarnation)
                letter = msgspec.structs.replace(letter, event=event, epoch=self.epoch)
        return super().receive(letter, now_s)


@bug("who is no member is not told")
class _Silent(Service):
    def _fence(self, worker: int, incarnation: int, peer: Any) -> None:
        pass


@bug("hearts do not beat")
class _Heartless(WorkerSession):
    def tick(self, now_s: float) -> FromWorker | None:
        letter = super().tick(now_s)
        return None if type(letter) is Beat else letter


@bug("nobody is ever evicted")
class _Patient(Sequencer):
    def _ticked(self, _: Ticked) -> None:
        pass


@bug("the silent keep their seats")
class _NoLeases(Service):
    def tick(self, now_s: float) -> list[Event]:
        return []


class _CountsWaiting(Membership):
    def answered(self, seat: Seat, now_s: float) -> None:
        super().answered(seat, seat.heard_s)


@bug("waiting counts as silence")
class _CountsWaitingAsSilence(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.members = _CountsWaiting(self.members.silence_s)


@bug("time is measured by a clock that jumps")
class _OnTheWall(Server):
    def now_s(self) -> float:
        return super().now_s() + self.clock.jump_s
