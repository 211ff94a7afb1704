"""A worker's connection with its proxy. It outlives the sockets that it runs over.

| the connection is lost for | then                                                                                      |
| -------------------------- | ----------------------------------------------------------------------------------------- |
| less than the lease (1)    | a new one takes its place, however often: what did not come is sent again, nobody notices |
| longer, or the head died   | the worker gets a seat anew, as a later incarnation: `Reseated`                           |
| longer than `rejoin_s`     | `ServerLostError`                                                                         |

(1) 5 s of silence, or 1.5 s once the other side hung up (`plesio.transport.limits`).
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from plesio.errors import ConfigurationError, PlesioError, ServerLostError, error_class
from plesio.protocol import remote
from plesio.protocol.coding import decoder_of, encode
from plesio.transport.channel import ChannelClosedError
from plesio.transport.limits import BEAT_S, LEASE_S, SEAT_S
from plesio.transport.session import Pulse, Session
from plesio.transport.wire import ConnectionLostError, Frame, FrameKind, RemoteProtocolError, Wire
from plesio.worker.warn import warn

RETRY_S = (0.05, 2.0)  # how long to wait before the next attempt to connect: at first, and at most
AGAIN_S = 0.1  # and at most, where a standby may be head any moment
SILENT_S = 3.0  # how long to try before saying so
PART_S = 10.0  # how long the last words of a worker may take,
GLANCE_S = 0.01  # and how often it is looked whether they have come
T = TypeVar("T")
decode: Callable[[bytes], remote.ToNewcomer] = decoder_of(remote.ToNewcomer)


class Reseated(Exception):
    """The worker has another seat, or the same one as a later incarnation: it has to introduce itself anew."""


class RunOver(Exception):
    """The run ended well: a table server is told."""


class TakenError(ConfigurationError):
    """There is no seat, or only until the head notices that somebody has left."""


class WorkerLink:
    """The connection of one worker. `dial` connects with the head and proves that this is no stranger. `OSError` and
    `ConnectionLostError` may be tried again: nobody is there."""

    def __init__(self, dial: Callable[[bytes], Wire], knock: remote.Knock, rejoin_s: float) -> None:
        self._dial = dial
        self._knock = knock
        self._rejoin_s = rejoin_s
        self._parting = False
        self._reconnecting = threading.Lock()
        self._given_up = False  # the seat; another has to be taken
        self._over = False  # for good: the head refused this worker, or it hung up
        self._take_seat()
        here = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _let_go(here()))
        self._pulse = Pulse(self._keep)

    # Both raise Reseated or ServerLostError where the connection was lost for too long

    def send(self, kind: FrameKind, body: bytes, payload: Sequence[memoryview] = ()) -> None:
        """Send; if the connection is lost, the frame is sent again on the next."""
        connection = self._session.connection
        try:
            self._session.send(kind, body, payload)
        except ConnectionLostError:
            self._reconnect(connection)

    def receive(self, timeout_s: float, place: Callable[[Frame], Sequence[memoryview]]) -> Frame | None:
        """The next frame, with its payload where `place`, which is shown each frame, says; None if none came in time. Raises what
        the head says when it hangs up."""
        end_s = time.monotonic() + timeout_s
        while True:
            connection = self._session.connection
            try:
                frame = self._session.receive(min(max(0.0, end_s - time.monotonic()), BEAT_S))
                if frame is not None:
                    if frame.kind is FrameKind.SESSION:
                        self._over = True
                        raise refusal(decode(frame.body))
                    into = place(frame)
                    if frame.payload_bytes:
                        self._session.read_payload(into)
                    return frame
                if time.monotonic() - self._session.heard_s > LEASE_S:
                    raise ConnectionLostError(f"{self._session.peer} said nothing for {LEASE_S:g} s")
            except ConnectionLostError:
                self._reconnect(connection)
            if time.monotonic() >= end_s:
                return None

    @property
    def ranks(self) -> int:
        """How many processes its worker is."""
        return self._knock.ranks

    @property
    def is_leader(self) -> bool:
        """Whether it is the one of them that has the seat."""
        return not self._knock.leader

    def wait(self, other: int, timeout_s: float) -> None:
        """Wait until something comes or the `other` descriptor can be read; not without a connection."""
        here = self._session.fileno()
        if here >= 0 and not self._session.has_input:
            poller = select.poll()
            for descriptor in (here, other):
                poller.register(descriptor, select.POLLIN)
            poller.poll(1000 * timeout_s)

    def hasten(self) -> None:
        """The worker is about to part: a seat that is lost is not taken again, and the head is looked for during a lease."""
        self._parting, self._rejoin_s = True, LEASE_S

    def part(self, kind: FrameKind, body: bytes) -> None:
        """Say this last, see that all has come, and hang up."""
        if self._over:
            self.close()
            return
        end_s = time.monotonic() + PART_S
        with suppress(Reseated, PlesioError, ConnectionLostError):  # nobody is left to tell
            self.send(kind, body)
            while self._session.unacknowledged and time.monotonic() < end_s:
                self.receive(GLANCE_S, lambda frame: ())  # the word of it is in the head of a beat
            self._session.send(FrameKind.SESSION, encode(remote.Parted()))
        self.close()

    def cut(self) -> None:
        """Hang up under another thread: it finds the connection lost, and does not come back."""
        self._over = self._parting = True
        if (wire := self._session.connection) is not None:
            wire.cut()

    def close(self) -> None:
        """Hang up, in the middle of anything: for the head the worker may come back until the lease is over."""
        self._pulse.close()
        self._session.close()

    # Staying connected

    def _keep(self) -> None:
        """In a thread of its own: say that the worker is there. If the other side hung up, reconnect at once: the worker itself
        would notice only when it has computed, and may have lost its seat by then."""
        if self._parting or self._given_up or not self._session.hung_up:
            self._session.beat()
        elif self._reconnecting.acquire(blocking=False):
            try:
                # first: a head that is gone may have said why, which is still to be read
                wire = self._dial(self.seated.ticket)
                self._session.close()
                self._resume(wire)
            finally:
                self._reconnecting.release()

    def _reconnect(self, lost: Wire | None) -> None:
        """Go on over a new connection than the one that is `lost`."""
        with self._reconnecting:
            if self._session.connection in (None, lost):  # else the other thread was quicker
                self._session.close()
                again_s = AGAIN_S if self.seated.terms.standby else RETRY_S[1]
                persist(self._come_back, lambda: self._rejoin_s, self._session.peer, again_s)

    def _come_back(self) -> None:
        """Go on with the proxy where it was. If it is gone, take a seat anew (unless the worker parts) and raise `Reseated`."""
        if self._over:
            raise ServerLostError("this worker hung up")
        if self._resume(self._dial(self.seated.ticket)):
            return
        if self.ranks > 1 and not self._parting:
            raise ServerLostError(
                f"the connection of this rank with the head was lost for longer than its lease ({LEASE_S:g} s): to the run the "
                "worker has died; start all of its ranks again, as torchrun does, and they have its seat back"
            )
        if not self._parting:
            self._take_seat()
        raise Reseated

    def _resume(self, wire: Wire) -> bool:
        """Go on with the proxy where it was; False if it is gone."""
        reply = _answer_to(remote.Resume(self._session.received), wire)
        if not isinstance(reply, remote.LineResumed):
            wire.close()
            self._given_up = True
            return False
        self._session.resume(wire, reply.received)
        return True

    def _take_seat(self) -> None:
        wire = self._dial(remote.NO_TICKET)
        reply = _answer_to(self._knock, wire)
        if not isinstance(reply, remote.Seated):
            wire.close()
            raise refusal(reply)
        self.seated, self._given_up = reply, False
        terms = reply.terms  # from now on that seat and no other, in a run like this one
        strategy, options = {"name": terms.name, **terms.strategy}, {**self._knock.options, "workers": terms.workers}
        self._knock = msgspec.structs.replace(self._knock, rank=reply.worker, strategy=strategy, options=options)
        self._session = Session(wire, wire.peer)


def _let_go(link: WorkerLink | None) -> None:
    """In a process that the training function forked: an open copy of the socket would hide this worker's end from the head."""
    if link is not None and (descriptor := link._session.fileno()) >= 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)


def persist(attempt: Callable[[], T], within_s: Callable[[], float], head: str, again_s: float = RETRY_S[1]) -> T:
    """What an attempt to connect comes to: it is repeated while the head cannot be reached, and for two leases while all seats
    are taken. `within_s` may become less meanwhile; `again_s`: how long to wait in between at most."""
    began_s, pause_s, silent = time.monotonic(), RETRY_S[0], True
    while True:
        limit_s = within_s()
        try:
            return attempt()
        except TakenError as error:
            if time.monotonic() - began_s > 2 * LEASE_S:
                raise
            why = str(error)
        except (OSError, ConnectionLostError, ChannelClosedError) as error:
            why = str(error) or type(error).__name__
        if time.monotonic() + pause_s > began_s + limit_s:
            raise ServerLostError(
                f"no server: tried to reach {head} for {limit_s:g} s ({why}); is it running, and is that address reachable from "
                "this host?"
            )
        if silent and time.monotonic() - began_s > SILENT_S:
            warn(f"trying to reach {head} for up to {limit_s:g} s: {why}")
            silent = False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, again_s)


def refusal(reply: remote.ToNewcomer) -> Exception:
    """What to raise for an answer that is no seat."""
    if isinstance(reply, remote.Parted):
        return RunOver()
    if not isinstance(reply, remote.SeatRefused):
        return RemoteProtocolError(f"{type(reply).__name__} came out of turn")
    kind = TakenError if reply.for_now else error_class(reply.kind) or ConfigurationError
    return kind(reply.why)


def _answer_to(first: remote.FromNewcomer, wire: Wire) -> remote.ToNewcomer:
    """What comes for the first words on a connection. If that is nothing, the connection is lost."""
    try:
        wire.send(FrameKind.SESSION, encode(first))
        frame = wire.receive(SEAT_S)
        if frame is None:
            raise ConnectionLostError(f"{wire.peer} did not answer within {SEAT_S:g} s")
        return decode(frame.body)
    except BaseException:
        wire.close()
        raise
