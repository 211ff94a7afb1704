"""A worker's connection with its deputy. It outlives the sockets that it runs over.

| the connection is lost for | then                                                                                      |
| -------------------------- | ----------------------------------------------------------------------------------------- |
| less than the lease        | a new one takes its place: what did not come is sent again, and nobody notices            |
| longer, or the head died   | the worker gets a seat anew, as a later incarnation: `Reseated`                           |
| longer than `rejoin_s`     | `ServerLostError`                                                                         |
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from plesio.errors import ConfigurationError, ServerLostError, error_class
from plesio.protocol import remote
from plesio.protocol.coding import decoder_of, encode
from plesio.transport.channel import ChannelClosedError
from plesio.transport.limits import BEAT_S, LEASE_S, SEAT_S
from plesio.transport.session import Session
from plesio.transport.wire import ConnectionLostError, Frame, Kind, RemoteProtocolError, Wire

RETRY_S = (0.05, 2.0)
"""How long to wait before the next attempt to connect: at first, and at most."""
T = TypeVar("T")
decode: Callable[[bytes], remote.ToNewcomer] = decoder_of(remote.ToNewcomer)
NOWHERE: Callable[[Frame], Sequence[memoryview]] = lambda frame: ()  # noqa: E731


class Reseated(Exception):
    """The worker has another seat, or the same one as a later incarnation: it has to introduce itself anew."""


class Link:
    """The connection of one worker.

    Args:
        dial: connects with the head, showing a ticket (of 16 zeros: none), and proves that this is no stranger.
        knock: what to say there.
        rejoin_s: how long to try after the connection was lost.

    Raises:
        OSError, ConnectionLostError: nobody is there; it may be tried again.
        ConfigurationError, PlesioError: the head refuses the worker.
    """

    def __init__(self, dial: Callable[[bytes], Wire], knock: remote.Knock, rejoin_s: float) -> None:
        self._dial = dial
        self._knock = knock
        self._rejoin_s = rejoin_s
        self._closed = False
        if not self._take_seat():
            raise ConnectionLostError("it hung up")
        here = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _let_go(here()))
        threading.Thread(target=self._beat, name="plesio heartbeat", daemon=True).start()

    def send(self, kind: Kind, body: bytes, payload: Sequence[memoryview] = ()) -> None:
        """Send; if the connection is lost, the frame is sent again on the next.

        Raises:
            Reseated, ServerLostError: it was lost for too long.
        """
        try:
            self._session.send(kind, body, payload)
        except ConnectionLostError:
            self._reconnect()

    def receive(self, timeout_s: float, place: Callable[[Frame], Sequence[memoryview]] = NOWHERE) -> Frame | None:
        """The next frame, with its payload where `place` says; None if none came in time.

        Raises:
            Reseated, ServerLostError: the connection was lost for too long.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                frame = self._session.receive(min(max(0.0, end_s - time.monotonic()), BEAT_S))
                if frame is not None:
                    if frame.payload_bytes:
                        self._session.read_payload(place(frame))
                    return frame
                if time.monotonic() - self._session.heard_s > LEASE_S:
                    raise ConnectionLostError(f"{self._session.peer} said nothing for {LEASE_S:g} s")
            except ConnectionLostError:
                self._reconnect()
            if time.monotonic() >= end_s:
                return None

    def fileno(self) -> int:
        """The descriptor; -1 while there is no connection."""
        return self._session.fileno()

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was sent has come."""
        end_s = time.monotonic() + timeout_s
        while self._session.unacknowledged and time.monotonic() < end_s:
            self.receive(BEAT_S)

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        self._session.close()

    # Staying connected

    def _beat(self) -> None:
        """The thread: say that the worker is alive, while it computes."""
        while not self._closed:
            time.sleep(BEAT_S)
            with suppress(ConnectionLostError):  # the worker finds out when it has something to say
                self._session.beat()

    def _reconnect(self) -> None:
        """Go on over a new connection.

        Raises:
            Reseated: the seat was given up meanwhile; there is another.
        """
        self._session.close()
        persist(lambda: self._resume() or self._take_seat(), self._rejoin_s, self._knock.who)
        if self._new:
            raise Reseated

    def _resume(self) -> bool:
        """Whether the deputy is still there, and goes on where it was."""
        wire = self._dial(self.seated.ticket)
        wire.send(Kind.SESSION, encode(remote.Resume(self._session.received)))
        frame = _first(wire)
        if frame is None:
            return False
        reply = decode(frame.body)
        if not isinstance(reply, remote.Resumed):
            return False
        self._session.resume(wire, reply.received)
        self._new = False
        return True

    def _take_seat(self) -> bool:
        wire = self._dial(remote.NO_TICKET)
        wire.send(Kind.SESSION, encode(self._knock))
        frame = _first(wire)
        if frame is None:
            return False
        reply = decode(frame.body)
        if isinstance(reply, remote.Refused):
            wire.close()
            raise (error_class(reply.kind) or ConfigurationError)(reply.why)
        if not isinstance(reply, remote.Seated):
            raise RemoteProtocolError(f"{type(reply).__name__} came for a knock")
        self.seated = reply
        self._knock = msgspec.structs.replace(self._knock, rank=reply.worker)  # from now on that seat and no other
        self.hosts = wire.hosts
        self._session = Session(wire, wire.peer)
        self._new = True
        return True


def _let_go(link: Link | None) -> None:
    """In a process that the training function forked: an open copy of the socket would hide this worker's end from the head."""
    if link is not None and (descriptor := link.fileno()) >= 0:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)


def persist(attempt: Callable[[], T], within_s: float, who: str) -> T:
    """What an attempt to connect comes to: it is repeated while the head cannot be reached.

    Raises:
        ServerLostError: it could not be reached for so long.
    """
    end_s, pause_s = time.monotonic() + within_s, RETRY_S[0]
    while True:
        try:
            if got := attempt():
                return got
            why = "it hung up"
        except (OSError, ConnectionLostError, ChannelClosedError) as error:
            why = str(error) or type(error).__name__
        if time.monotonic() + pause_s > end_s:
            raise ServerLostError(
                f"no server: {who} tried for {within_s:g} s ({why}); is the head running, and is the address reachable from "
                "this host?"
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S[1])


def _first(wire: Wire) -> Frame | None:
    """The first answer on a new connection; None if it was closed, or nothing came."""
    try:
        frame = wire.receive(SEAT_S)
    except ConnectionLostError:
        frame = None
    if frame is None:
        wire.close()
    return frame
