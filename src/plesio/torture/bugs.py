"""Bugs to plant: the test of the test. Each must be found by a few seeds, or the oracle is blind to it.

A bug is a part with one thing wrong, put in the place of the real one for the runs that ask for it; no code outside
this room knows of any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self

import msgspec

from plesio.core.events import Effect, Event, Fold, Grant, Leased, Member, Pushed, Verdict
from plesio.core.leases import Batch, DataLeases, LeasesState
from plesio.core.ledger import Admission, Ledger
from plesio.core.letters import Ask, Beat, CalledOff, FromServer, FromWorker, Go, Level, Push, Received
from plesio.core.membership import Membership, Seat
from plesio.core.sequencer import Sequencer, SequencerState
from plesio.core.service import Service, ServiceState
from plesio.core.session import News, Welcome, WorkerSession
from plesio.errors import ConfigurationError, unknown_name
from plesio.torture.disk import Disk, File, sealed
from plesio.torture.process import Process
from plesio.torture.server import Server
from plesio.torture.world import Parts

BUGS: dict[str, Parts] = {}


def planted(name: str | None) -> Parts:
    """The parts of a run with that bug; the real ones for None.

    >>> planted("nobody is ever evicted").sequencer.__mro__[1].__name__
    'Sequencer'

    Raises:
        ConfigurationError: no such bug; the known ones are listed.
    """
    if name is None:
        return Parts()
    if name not in BUGS:
        raise ConfigurationError(unknown_name("bug", name, BUGS))
    return BUGS[name]


def bug(name: str) -> Callable[[type], type]:
    """Let a part with a bug be known by that name; several classes of a name are planted together."""

    def plant(part: type) -> type:
        field = {
            Sequencer: "sequencer",
            Service: "service",
            WorkerSession: "worker_session",
            Disk: "disk",
            Server: "server",
            Process: "process",
        }[part.__mro__[1]]
        BUGS[name] = replace(BUGS.get(name, Parts()), **{field: part})
        return part

    return plant


# Exactly once


@bug("no dedupe")
class _Forgetful(Service):
    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        if type(letter) is Push and self._peers[letter.event.worker].incarnation == letter.event.incarnation:
            self._peers[letter.event.worker].serial = letter.serial - 1
        return super().receive(letter, now_s)


class _AdmitsAll(Ledger):
    def admit(self, worker: int, incarnation: int, number: int) -> Admission:
        return Admission.NEW if super().admit(worker, incarnation, number) is not Admission.FENCED else Admission.FENCED


@bug("no dedupe")
class _WithoutLedger(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ledger = _AdmitsAll()


@bug("a retry bears a new number")
class _CountsRetries(WorkerSession):
    def tick(self, now_s: float) -> FromWorker | None:
        letter = super().tick(now_s)
        if type(letter) is not Push:
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
    def receive(self, letter: FromServer, now_s: float) -> News | None:
        if isinstance(letter, Go) and letter.incarnation == self.incarnation and letter.serial > 0:
            letter = msgspec.structs.replace(letter, serial=self._serial)
        return super().receive(letter, now_s)


@bug("a request for data that is repeated gets other data")
class _LeasesAnew(Service):
    def _repeat(self, worker: int, serial: int, peer: Any) -> None:
        if type(peer.answer) is not Leased:
            super()._repeat(worker, serial, peer)

    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        if type(letter) is Ask:
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
        if isinstance(letter, (Push, Ask)):
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
    def _ticked(self) -> None:
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


# Order


@bug("the clock bound is off by one")
class _OffByOne(Sequencer):
    def _release_by_clock(self) -> None:
        for seat in self.members.seats.values():
            if seat.waiting is not None and self._release.may_go(seat.clock - 1, self.members.slowest):
                self._grant(seat)


@bug("a wake-up is lost")
class _WakesOnlyTheSpeaker(Sequencer):
    def _release_by_clock(self) -> None:
        seat = self.members.seats.get(self._speaker)
        if seat is not None and seat.waiting is not None and self._release.may_go(seat.clock, self.members.slowest):
            self._grant(seat)


@bug("a round waits for the dead")
class _CountsTheDead(Sequencer):
    def _reachable(self) -> int | None:
        return self.workers if self._after_fold else super()._reachable()


@bug("staleness is counted from the current version")
class _AlwaysFresh(Sequencer):
    def _member(self, one: Any, share: float) -> Member:
        return msgspec.structs.replace(super()._member(one, share), computed_from=self.version - 1, staleness=0)


@bug("what came is dropped when its worker leaves")
class _DropsPending(Sequencer):
    def _left(self, worker: int, incarnation: int) -> None:
        self._pending = [one for one in self._pending if one.event.worker != worker]
        super()._left(worker, incarnation)


@bug("who is called off goes on from the old version")
class _StaysBehind(WorkerSession):
    def _called_off(self, letter: CalledOff) -> Any:
        version = self.version
        effect = super()._called_off(letter)
        self.version = version
        return effect


@bug("what is not finite is folded")
class _TakesAnything(Sequencer):
    def _pushed(self, event: Pushed) -> None:
        super()._pushed(msgspec.structs.replace(event, finite=True))


@bug("incarnations share a slot")
class _SharesSlots(Server):
    class _ByWorker(dict[tuple[int, int], int]):
        def __setitem__(self, key: tuple[int, int], payload: int) -> None:
            super().__setitem__((key[0], 0), payload)

        def __getitem__(self, key: tuple[int, int]) -> int:
            return super().__getitem__((key[0], 0))

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._slots = self._ByWorker()


# Data


class _Keeps(DataLeases):
    def left(self, worker: int) -> None:
        self._gone.add(worker)
        self._outstanding[worker].clear()


@bug("the data of the dead is not given back")
class _WithoutGivingBack(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.leases.__class__ = _Keeps


@bug("data of a step called off is not given back")
class _KeepsAbandoned(WorkerSession):
    def abandon(self, batches: int) -> None:
        pass


@bug("data that came and is not folded is missing from the checkpoint")
class _ForgetsPending(Sequencer):
    def state(self) -> SequencerState:
        return msgspec.structs.replace(super().state(), leases=self.leases.state(()))


class _ForgetsLeased(DataLeases):
    def state(self, unfolded: Iterable[Batch]) -> LeasesState:
        held, self._outstanding = self._outstanding, {worker: type(one)() for worker, one in self._outstanding.items()}
        state = super().state(unfolded)
        self._outstanding = held
        return state


@bug("leased data is missing from the checkpoint")
class _WithoutLeased(Sequencer):
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.leases.__class__ = _ForgetsLeased


# Acknowledgements and checkpoints


@bug("applied is said before it is")
class _SaysAppliedEarly(Service):
    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        events = super().receive(letter, now_s)
        for event in events:
            if type(event) is Pushed:
                self.applied[event.worker] += 1
        return events

    def done(self, effect: Effect) -> None:
        if type(effect) is not Fold:
            super().done(effect)


@bug("the answer goes out before the fold")
class _AnswersFirst(Sequencer):
    def receive(self, event: Event, now_s: float) -> list[Effect]:
        return sorted(super().receive(event, now_s), key=lambda effect: type(effect) is not Grant)


@bug("durable is said before the checkpoint is written")
class _SaysDurableEarly(Service):
    def begin_checkpoint(self) -> tuple[int, ServiceState]:
        number, state = super().begin_checkpoint()
        self.written(number, state)
        return number, state


@bug("answers do not wait until they are durable")
class _DoesNotWait(Service):
    def done(self, effect: Effect) -> None:
        super().done(effect)
        if type(effect) is Grant and effect.verdict is Verdict.TAKEN and self._peers[effect.worker].withheld:
            self._peers[effect.worker].withheld = 0
            self._answer(effect.worker, self._peers[effect.worker])


@bug("the ledger is missing from the checkpoint")
class _WithoutCounts(Service):
    def state(self) -> ServiceState:
        return msgspec.structs.replace(super().state(), applied=(0,) * len(self.applied))


@bug("the version is not restored")
class _FromZero(Sequencer):
    @classmethod
    def restore(cls, *arguments: Any, **settings: Any) -> Self:
        sequencer = super().restore(*arguments, **settings)
        sequencer.version = 0
        return sequencer


@bug("a restart is not told")
class _SameEpoch(Service):
    def __init__(self, workers: int, epoch: int, *arguments: Any, **settings: Any) -> None:
        super().__init__(workers, 1, *arguments, **settings)


@bug("what is undone is counted in versions")
class _CountsVersions(WorkerSession):
    def _welcome(self, letter: Any) -> Welcome:
        welcome = super()._welcome(letter)
        if welcome.went_back is None:
            return welcome
        back = welcome.went_back
        return Welcome(welcome.version, msgspec.structs.replace(back, undone=max(0, back.version - back.to_version)))


@bug("a partial checkpoint is accepted")
class _WritesInPlace(Disk):
    STEPS = ("write", "sync")

    def write(self, content: bytes) -> None:
        self._shown = self._kept = self._temporary = File(sealed(content))

    def load(self) -> bytes | None:
        return self._shown.content[4:] or None


@bug("a checkpoint is renamed before it is synced")
class _RenamesFirst(Disk):
    STEPS = ("write", "rename", "sync_folder", "sync")


@bug("the folder is not synced")
class _SkipsTheFolder(Disk):
    STEPS = ("write", "sync", "rename")


@bug("a checkpoint is taken in the middle of an event")
class _InTheMiddle(Server):
    _due = False

    def _begin_checkpoint(self, _: object, __: object) -> None:
        if self.world.plan.level is Level.DURABLE:  # there nothing happens unless checkpoints are taken
            super()._begin_checkpoint(None, None)
        self._due = True

    def _carry_out(self, event: Event, effect: Effect) -> None:
        if self._due:
            self._due = False
            super()._begin_checkpoint(None, None)
        super()._carry_out(event, effect)


@bug("a request is called received and forgotten")
class _ForgetsReceived(WorkerSession):
    def receive(self, letter: FromServer, now_s: float) -> News | None:
        news = super().receive(letter, now_s)
        if type(letter) is Received and self._received:
            self.outstanding = None
        return news
