"""Bugs of acknowledgements and checkpoints: what is said too early, and what a crash then undoes."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from plesio.core.events import Effect, Event, Fold, Grant, Pushed, Verdict
from plesio.core.sequencer import Sequencer
from torture.bugs.planting import bug
from torture.disk import Disk, File, sealed
from torture.server import Server
from torture.sessions.envelopes import FromServer, FromWorker, Level, Received
from torture.sessions.service import Service, ServiceState
from torture.sessions.session import News, Welcome, WorkerSession


@bug("applied is said before it is")
class _SaysAppliedEarly(Service):
    def receive(self, letter: FromWorker, now_s: float) -> tuple[Event, ...]:
        events = super().receive(letter, now_s)
        for event in events:
            if type(event) is Pushed:
                self.applied[event.worker] += 1
        return events

    def folded(self, fold: Fold) -> None:
        pass


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
    def granted(self, grant: Grant) -> None:
        super().granted(grant)
        if grant.verdict is Verdict.TAKEN and self._peers[grant.worker].withheld:
            self._peers[grant.worker].withheld = 0
            self._answer(grant.worker, self._peers[grant.worker])


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

    def _write(self, step: int, checkpoint: tuple[bytes, int, ServiceState]) -> None:
        if not step:
            self._latest = checkpoint  # the one before is given up: two at once would spoil each other's file
        if checkpoint is self._latest:
            super()._write(step, checkpoint)

    def _carry_out(self, effect: Effect) -> None:
        if self._due:
            self._due = False
            super()._begin_checkpoint(None, None)
        super()._carry_out(effect)


@bug("a request is called received and forgotten")
class _ForgetsReceived(WorkerSession):
    def receive(self, letter: FromServer) -> News | None:
        news = super().receive(letter)
        if type(letter) is Received and self._received:
            self.outstanding = None
        return news
