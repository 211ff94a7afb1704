"""The server's side of delivery: which message is new, what to answer one that is not, and who fell silent.

Theory. For each worker the server keeps one record (a peer): the incarnation that holds the seat, the serial of its last
request and the answer to it. That is all it needs, because a worker has one request on its way at a time, and so its
memory is fixed by the number of workers, whatever comes.

| a message of                                   | is answered by                                                     |
| --------------------------------------------- | ------------------------------------------------------------------ |
| another epoch (this server was restarted)     | Fenced, which names this epoch; the worker joins again             |
| an incarnation that does not hold the seat    | Fenced, unless it joins and is higher than any seen                |
| the next serial                               | nothing yet: its event goes to the sequencer, whose effect answers |
| the last serial, answered                     | the same answer once more                                          |
| the last serial, not answered yet             | Received                                                           |
| an earlier serial                             | nothing: its sender has gone on                                    |

A peer that is not heard for `silence_s` has left (its lease ran out); so has a worker of a restarted server that does not
come back in that time, whose data would wait for it. `applied` and `durable` count each worker's contributions that are
in the parameters and in the last checkpoint. Counts go into the checkpoint, peers do not: after a restart nobody is a
member, and all join again.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from plesio.core.events import Abandoned, Cancel, Discard, Event, Evict, Fold, Grant, Joined, Leased, Left, Verdict
from torture.sessions import envelopes


class ServiceState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps: each worker's contributions in the parameters, and the highest incarnation seen."""

    applied: tuple[int, ...]
    latest: tuple[int, ...]


@dataclass(slots=True)
class _Peer:
    """What is known of the process in one seat; incarnation 0: nobody came yet."""

    incarnation: int
    heard_s: float
    seated: bool = False
    expected: bool = True  # whether its silence is still to be told
    serial: int = 0
    answer: Grant | Leased | Cancel | None = None
    withheld: int = 0  # the checkpoint the answer waits for; 0: none
    cancelled: Cancel | None = None  # the last


class Service:
    """Sessions of all workers. Messages to send are put into `outbox`, for the caller to take out.

    Args:
        epoch: counts the starts of the server; higher than that of any server before, and at least 1.
        silence_s: how long a worker may be silent.
        level: what the answer to a contribution waits for.
        state: of the checkpoint that the server goes on from: nobody is a member yet.
        now_s: the time, by the clock that all later times are told by.

    >>> service = Service(workers=1, epoch=1, silence_s=5.0, now_s=0.0)
    >>> service.receive(envelopes.Request(0, Joined(0, 1)), now_s=0.1)
    (Joined(worker=0, incarnation=1, at=None),)
    >>> service.granted(Grant(0, 0, 7, Verdict.TAKEN, 0)); [message.serial for message in service.outbox]
    [0]
    >>> service.receive(envelopes.Request(0, Joined(0, 1)), now_s=0.2), len(service.outbox)
    ((), 2)
    >>> service.tick(now_s=9.9)
    [Left(worker=0, incarnation=1, died=True, early=False)]
    """

    def __init__(
        self,
        workers: int,
        epoch: int,
        silence_s: float,
        level: envelopes.Level = envelopes.Level.APPLIED,
        state: ServiceState | None = None,
        *,
        now_s: float,
    ) -> None:
        self.epoch = epoch
        self.silence_s = silence_s
        self.level = level
        self.outbox: list[envelopes.FromServer] = []
        self.applied = [0] * workers
        self.durable = [0] * workers
        self._peers = [_Peer(0, now_s) for _ in range(workers)]
        self._checkpoint = 1  # the number of the next one
        if state is not None:
            for worker, (applied, latest) in enumerate(
                zip(state.applied[:workers], state.latest[:workers], strict=True)
            ):
                self.applied[worker] = self.durable[worker] = applied
                self._peers[worker].incarnation = latest

    # Checkpoints

    def state(self) -> ServiceState:
        """What belongs into a checkpoint; whoever takes it says so, and says when it is written (`written`)."""
        return ServiceState(tuple(self.applied), tuple([peer.incarnation for peer in self._peers]))

    def begin_checkpoint(self) -> tuple[int, ServiceState]:
        self._checkpoint += 1
        return self._checkpoint - 1, self.state()

    def written(self, checkpoint: int, state: ServiceState) -> None:
        """That checkpoint can no longer be lost: what it holds is durable."""
        self.durable = list(state.applied)
        for worker, peer in enumerate(self._peers):
            if 0 < peer.withheld <= checkpoint:
                peer.withheld = 0
                self._answer(worker, peer)

    # What workers say

    def receive(self, message: envelopes.FromWorker, now_s: float) -> tuple[Event, ...]:
        """The events that a message, which comes from the worker it names, brings for the sequencer: none, unless it is new."""
        sender = message if isinstance(message, envelopes.Beat) else message.event
        worker, incarnation = sender.worker, sender.incarnation
        peer = self._peers[worker]
        new_process = isinstance(sender, Joined) and not message.epoch
        if message.epoch != self.epoch and not new_process:
            self._fence(worker, incarnation, peer)
        elif incarnation == peer.incarnation and peer.seated:
            peer.heard_s = now_s
            if isinstance(message, envelopes.Request) and message.serial == peer.serial + 1:
                return self._new(message, peer)
            self._repeat(worker, message.serial, peer)
        elif isinstance(sender, Joined) and incarnation > peer.incarnation:
            self._peers[worker] = _Peer(incarnation, now_s, seated=True)
            return (sender,)
        elif isinstance(sender, Left) and incarnation == peer.incarnation:
            self._received(worker, peer, message.serial)
        else:
            self._fence(worker, incarnation, peer)
        return ()

    def _new(self, request: envelopes.Request, peer: _Peer) -> tuple[Event, ...]:
        peer.serial, peer.answer, peer.withheld = request.serial, None, 0
        event = request.event
        leaves = isinstance(event, Left)
        if leaves:
            peer.seated = peer.expected = False
        if leaves or self.level is envelopes.Level.RECEIVED:
            self._received(event.worker, peer, request.serial)
        if request.abandoned:
            return (Abandoned(event.worker, event.incarnation, request.abandoned), event)
        return (event,)

    def _repeat(self, worker: int, serial: int, peer: _Peer) -> None:
        if serial != peer.serial:
            return
        if peer.answer is None or peer.withheld:
            self._received(worker, peer, serial)
        else:
            self._answer(worker, peer)

    def _received(self, worker: int, peer: _Peer, serial: int) -> None:
        self.outbox.append(envelopes.Received(worker, peer.incarnation, self.epoch, serial))

    def _fence(self, worker: int, incarnation: int, peer: _Peer) -> None:
        self.outbox.append(envelopes.Fenced(worker, incarnation, self.epoch, peer.incarnation))

    # Who left

    def tick(self, now_s: float) -> list[Event]:
        """Who was silent too long, for the sequencer to know that they left."""
        return [
            self._leave(worker, peer.incarnation)
            for worker, peer in enumerate(self._peers)
            if peer.expected and now_s - peer.heard_s > self.silence_s
        ]

    def broken(self, worker: int, incarnation: int) -> list[Event]:
        """The connection of that incarnation ended because its process did."""
        peer = self._peers[worker]
        held = peer.seated and peer.incarnation == incarnation
        return [self._leave(worker, incarnation)] if held else []

    def _leave(self, worker: int, incarnation: int) -> Event:
        peer = self._peers[worker]
        peer.seated = peer.expected = False
        peer.withheld = 0
        return Left(worker, incarnation, died=True)

    # What the sequencer decided, once it is carried out: whom it concerns is told

    def granted(self, grant: Grant) -> None:
        peer = self._peers[grant.worker]
        peer.answer = grant
        if self.level is envelopes.Level.DURABLE and peer.serial > 0:
            peer.withheld = self._checkpoint
        else:
            self._send(grant.worker, peer.serial, grant, peer)

    def leased(self, leased: Leased) -> None:
        peer = self._peers[leased.worker]
        peer.answer = leased
        self._send(leased.worker, peer.serial, leased, peer)

    def called_off(self, cancel: Cancel) -> None:
        peer = self._peers[cancel.worker]
        peer.cancelled = cancel
        self._send(cancel.worker, envelopes.UNASKED, cancel, peer)

    def folded(self, fold: Fold) -> None:
        for member in fold.members:
            self.applied[member.worker] += 1

    def repeated(self, discard: Discard) -> None:
        """One that was called off, and comes yet, is answered by what called it off; a stranger learns that it is one."""
        peer = self._peers[discard.worker]
        if discard.verdict is Verdict.DUPLICATE:
            assert peer.cancelled is not None, "a new request bears a new number, or one called off"
            peer.answer = peer.cancelled
            self._answer(discard.worker, peer)
        elif discard.verdict is Verdict.FENCED:
            peer.seated = peer.expected = False
            self._fence(discard.worker, discard.incarnation, peer)

    def evicted(self, evict: Evict) -> None:
        self._leave(evict.worker, evict.incarnation)

    def _answer(self, worker: int, peer: _Peer) -> None:
        assert peer.answer is not None
        self._send(worker, peer.serial, peer.answer, peer)

    def _send(self, worker: int, serial: int, effect: Grant | Leased | Cancel, peer: _Peer) -> None:
        applied, durable = self.applied[worker], self.durable[worker]
        self.outbox.append(envelopes.Answer(worker, peer.incarnation, self.epoch, serial, applied, durable, effect))
