"""A worker's side of delivery: each request is answered once, over a connection that may lose, repeat or reorder.

Theory. A worker has one request on its way at a time, because it waits for the answer. Requests of an incarnation are
numbered from 0 (to join); one is sent again every `retry_s` until it is answered or known to be received, and the
server answers a serial it has answered before with the same words. So it does not matter which messages are lost, nor
whether a connection lasts: `connected` just says again what is open. Messages of another incarnation, an earlier epoch or
an earlier serial are ignored. While nothing else is to be said, a heartbeat is, so that the server's lease on this worker
does not run out (`torture.sessions.service`).

| phase      | the answer     | called off (unasked)     | Fenced, or a later epoch        | Fenced, a later incarnation |
| ---------- | -------------- | ------------------------ | ------------------------------- | --------------------------- |
| joining    | free           | -                        | lost                            | superseded                  |
| free       | -              | free, at a later version | lost                            | superseded                  |
| waiting    | free           | free, if asking for data | lost                            | superseded                  |
| finishing  | finished       | -                        | finished                        | finished                    |
| lost       | -              | -                        | - (`join` again: joining)       | superseded                  |

A lost worker drops what it was computing and the data it held (the server gives it to others) and joins again under the
next incarnation. If the server was restarted from a checkpoint it then learns how far it went back: how many of the
contributions it had been told were applied are not in the parameters any longer.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from plesio.core.events import Cancel, Grant, Joined, Leased, LeaseWanted, Left, Pushed
from torture.sessions.envelopes import UNASKED, Answer, Beat, Fenced, FromServer, FromWorker, Received, Request


class Phase(IntEnum):
    """What a worker's session is at; see the table above."""

    JOINING = 0
    FREE = 1
    WAITING = 2
    FINISHING = 3
    LOST = 4
    SUPERSEDED = 5
    FINISHED = 6


class WentBack(msgspec.Struct, frozen=True):
    """The server was restarted: it was last heard to be at `version`, is at `to_version`, and `undone` of this
    worker's contributions that were said to be applied are not in its parameters any longer."""

    version: int
    to_version: int
    undone: int


class Welcome(msgspec.Struct, frozen=True):
    """This worker is a member and goes on from `version`; `went_back` if the server was restarted meanwhile."""

    version: int
    went_back: WentBack | None


class Lost(msgspec.Struct, frozen=True):
    """This worker is no member (any longer): it drops what it has, and `join`s again unless `superseded` by a newer
    process in its place."""

    superseded: bool


News = Welcome | Grant | Leased | Cancel | Lost


class WorkerSession:
    """One worker process's session.

    Args:
        worker: its seat number.
        incarnation: the first it may use. It counts up each time it joins again, so a process started later in the
            same seat must be given one far above (a launch counter in the upper bits).
        retry_s: how long an unanswered request is waited for before it is sent again.
        heartbeat_s: how long it may be silent.

    >>> from plesio.core.events import Verdict
    >>> session = WorkerSession(worker=0, incarnation=1, retry_s=1.0, heartbeat_s=2.0)
    >>> session.join(now_s=0.0)
    Request(epoch=0, event=Joined(worker=0, incarnation=1, at=None), serial=0, abandoned=0)
    >>> session.tick(now_s=0.5), session.tick(now_s=1.0) == session.outstanding
    (None, True)
    >>> session.receive(Answer(0, 1, 1, 0, 0, 0, Grant(0, 0, 7, Verdict.TAKEN, 0)))
    Welcome(version=7, went_back=None)
    >>> session.push(1, 32, 1, True, now_s=1.2).event.number, session.phase.name
    (1, 'WAITING')
    """

    def __init__(self, worker: int, incarnation: int, retry_s: float, heartbeat_s: float) -> None:
        self.worker = worker
        self.incarnation = incarnation - 1
        self.retry_s = retry_s
        self.heartbeat_s = heartbeat_s
        self.phase = Phase.LOST
        self.epoch = 0  # the server's, as last heard
        self.version = 0  # what this worker goes on from
        self.number = 1  # of its next contribution
        self.applied = 0  # how many of its contributions the server said are in the parameters,
        self.durable = 0  # and in a checkpoint
        self.outstanding: Request | None = None
        self._joined_epoch = 0  # of the server that last let it in
        self._serial = 0
        self._received = False  # whether the server has the outstanding request
        self._abandoned = 0  # batches dropped and not yet told
        self._sent_s = 0.0

    @property
    def due_s(self) -> float:
        return self._sent_s + (self.heartbeat_s if self.outstanding is None or self._received else self.retry_s)

    # What the training loop wants

    def join(self, now_s: float) -> Request:
        assert self.phase is Phase.LOST, "a member does not join"
        self.incarnation += 1
        self.number, self._serial, self._abandoned = 1, -1, 0
        return self._ask(Joined(self.worker, self.incarnation), Phase.JOINING, now_s)

    def push(
        self,
        steps: int,
        samples: int,
        batches: int,
        finite: bool,
        now_s: float,
        adopted_at: int = 0,
        rows: bool = False,
    ) -> Request:
        """Send a contribution computed from `version`; the arguments as in `plesio.core.events.Pushed`."""
        event = Pushed(
            self.worker, self.incarnation, self.number, steps, samples, batches, finite, adopted_at, rows=rows
        )
        return self._ask(event, Phase.WAITING, now_s)

    def ask(self, epoch: int, total: int, most: int, unused: int, now_s: float) -> Request:
        """Ask for data; the arguments as in `plesio.core.events.LeaseWanted`."""
        event = LeaseWanted(self.worker, self.incarnation, epoch, total, most, unused)
        return self._ask(event, Phase.WAITING, now_s)

    def finish(self, now_s: float) -> Request:
        event = Left(self.worker, self.incarnation, died=False)
        return self._ask(event, Phase.FINISHING, now_s)

    def abandon(self, batches: int) -> None:
        """Say with the next request that so many leased batches, the oldest, were dropped with a step called off."""
        self._abandoned += batches

    def _ask(self, event: Joined | Pushed | LeaseWanted | Left, phase: Phase, now_s: float) -> Request:
        assert self.outstanding is None, "a worker waits for one answer at a time"
        self._serial += 1
        request = self.outstanding = Request(self.epoch, event, self._serial, self._abandoned)
        self.phase = phase
        self._abandoned = 0
        self._received = False
        self._sent_s = now_s
        return request

    # Time and the connection

    def tick(self, now_s: float) -> FromWorker | None:
        """What is to be sent by now, if anything: the open request once more, or a heartbeat."""
        return self._say(now_s) if now_s >= self.due_s else None

    def connected(self, now_s: float) -> FromWorker | None:
        """What to send over a connection that was made again."""
        self._received = False
        return self._say(now_s)

    def _say(self, now_s: float) -> FromWorker | None:
        if self.phase >= Phase.LOST:
            return None
        self._sent_s = now_s
        if self.outstanding is not None and not self._received:
            return self.outstanding
        serial = UNASKED if self.outstanding is None else self._serial
        return Beat(self.worker, self.incarnation, self.epoch, serial)

    # What the server says

    def receive(self, message: FromServer) -> News | None:
        """What a message means for the training loop; None: nothing, or nothing new."""
        if message.incarnation != self.incarnation or message.epoch < self.epoch or self.phase >= Phase.LOST:
            return None
        if isinstance(message, Fenced):
            return self._fenced(message)
        if message.epoch > self.epoch and self.phase is not Phase.JOINING:
            return self._lose(message.epoch)
        if isinstance(message, Received):
            self._is_received(message)
        elif message.serial == self._serial and self.outstanding is not None:
            return self._answered(message)
        elif isinstance(message.effect, Cancel) and message.serial == UNASKED:
            return self._called_off(message.effect)
        return None

    def _is_received(self, message: Received) -> None:
        if message.serial == self._serial:
            self._received = True
            if self.phase is Phase.FINISHING:
                self.phase, self.outstanding = Phase.FINISHED, None

    def _answered(self, message: Answer) -> News:
        joining = self.phase is Phase.JOINING
        effect = message.effect
        self.outstanding, self.phase = None, Phase.FREE
        if joining:
            return self._welcome(message)
        self.applied, self.durable = message.applied, message.durable
        if not isinstance(effect, Leased):
            assert effect.number >= self.number, "an answer to something else"
            self.number, self.version = effect.number + 1, effect.version
        return effect

    def _welcome(self, message: Answer) -> Welcome:
        assert isinstance(message.effect, Grant), "joining is answered by leave to go on"
        version, went_back = message.effect.version, None
        if 0 < self._joined_epoch < message.epoch:
            went_back = WentBack(self.version, version, max(0, self.applied - message.applied))
        self.epoch = self._joined_epoch = message.epoch
        self.version, self.applied, self.durable = version, message.applied, message.durable
        return Welcome(self.version, went_back)

    def _called_off(self, cancel: Cancel) -> Cancel | None:
        """While a contribution is on its way only the answer to it counts: it says the same, and no later."""
        pushing = self.outstanding is not None and isinstance(self.outstanding.event, Pushed)
        if cancel.number < self.number or pushing or self.phase not in (Phase.FREE, Phase.WAITING):
            return None
        self.number, self.version = cancel.number + 1, cancel.version
        return cancel

    def _fenced(self, message: Fenced) -> Lost | None:
        if self.phase is Phase.FINISHING:
            self.phase, self.outstanding = Phase.FINISHED, None
            return None
        lost = self._lose(message.epoch)
        if message.latest > self.incarnation:
            self.phase = Phase.SUPERSEDED
            return Lost(superseded=True)
        return lost

    def _lose(self, epoch: int) -> Lost:
        self.epoch, self.phase, self.outstanding = epoch, Phase.LOST, None
        return Lost(superseded=False)
