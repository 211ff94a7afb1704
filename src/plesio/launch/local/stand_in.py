"""What deputies of workers and of table servers have in common: a session with somebody of another host, who may be away."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from plesio.launch.job import Job
from plesio.protocol import remote
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.connect import accept
from plesio.transport.doorbell import Lookout
from plesio.transport.limits import BEAT_S, HANDSHAKE_S, LEASE_S, RETURN_S
from plesio.transport.secure import ProofError
from plesio.transport.session import Session
from plesio.transport.wire import ConnectionLostError, Frame, HungUpError, Kind, Wire

TICK_S = 0.2
decode_knock: Callable[[bytes], remote.FromNewcomer] = decoder_of(remote.FromNewcomer)


class StandIn:
    """Stands in for `name`, who is at the other end of `session`."""

    eager = False
    """Whether both sides may send at the same time."""

    def __init__(self, job: Job, name: str, launcher: Channel[remote.ToDeputy], session: Session) -> None:
        self._job = job
        self._name = name
        self._launcher = launcher
        self._session = session
        self._poller = select.poll()
        self._poller.register(launcher.fileno(), select.POLLIN)
        self._hears: dict[int, Callable[[], None]] = {}
        self._hear: dict[Kind, Callable[[Frame], None]] = {Kind.SESSION: self._part}  # frames from the other side
        self._parted = False
        self._until_s = 0.0  # without a connection: when the time to come back is over

    def _listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """What to do when it can be read."""
        self._hears[descriptor] = hear
        self._poller.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        """Listen to it no more."""
        del self._hears[descriptor]
        self._poller.unregister(descriptor)

    def _from_far(self) -> bool:
        """Take one frame; whether another may follow."""
        frame = self._session.receive(0.0)
        if frame is None:
            return False
        handler = self._hear.get(frame.kind)
        if handler is None:
            raise ProtocolError(f"it sent a frame of kind {frame.kind.name}, which it may not")
        handler(frame)
        return not self._parted

    def _part(self, frame: Frame) -> None:
        if not isinstance(decode_knock(frame.body), remote.Parted):
            raise ProtocolError("it asked for a seat, and has one")
        self._parted = True

    def run(self) -> None:
        """Pass on what is said, until somebody is gone, or the other side says what it may not."""
        watched = -1
        lookout = Lookout(self._poller)
        while not self._parted and not (self._until_s and time.monotonic() > self._until_s):
            if watched != (now := self._session.fileno()):
                if watched >= 0:
                    self._poller.unregister(watched)
                if now >= 0:
                    self._poller.register(now, select.POLLIN)
                watched = now
            ready = {descriptor for descriptor, _ in lookout.wait(0.0 if self._session.has_input else TICK_S)}
            try:
                if self._launcher.fileno() in ready:
                    self._from_launcher()
                if watched in ready or self._session.has_input:
                    while self._from_far():
                        pass
                self._tick()
                for descriptor, hear in [*self._hears.items()]:  # while it is away, its session keeps what it is told
                    if descriptor in ready:
                        hear()
            except ConnectionLostError as lost:
                self._cut(hung_up=isinstance(lost, HungUpError))

    def _cut(self, hung_up: bool) -> None:
        """It has the lease to come back, or less if it `hung_up`; anew, if its next connection comes to nothing."""
        if not self._until_s:
            self._session.close()
            self._until_s = time.monotonic() + RETURN_S if hung_up else self._session.heard_s + LEASE_S
            self._launcher.send(remote.Away(True))

    def _tick(self) -> None:
        now_s = time.monotonic()
        if self._until_s:
            return
        if now_s - self._session.heard_s > LEASE_S:
            raise ConnectionLostError(f"{self._name} said nothing for {LEASE_S:g} s")
        if now_s - self._session.told_s > BEAT_S:
            self._session.beat()

    def _from_launcher(self) -> None:
        """It is there again, on another connection, which may be lost before all is said: then it comes again."""
        message, descriptors = self._launcher.receive(LEASE_S)
        if not isinstance(message, remote.Reconnected):  # the run ended, well or for this reason
            self._session.send(Kind.SESSION, encode(message))
            if self._session.connection is not None:
                self._session.connection.part()
            raise ChannelClosedError("the launcher")
        wire = opened(self._job, descriptors[0])
        if wire is None:
            return
        try:
            knock = first_words(wire)
            if not isinstance(knock, remote.Resume):
                raise ProtocolError("it has a ticket, and does not resume")
            wire.send(Kind.SESSION, encode(remote.Resumed(self._session.received)))
        except (ConnectionLostError, ProtocolError):
            wire.close()
            return
        self._until_s, wire.eager = 0.0, self.eager
        self._session.resume(wire, knock.received)
        self._launcher.send(remote.Away(False))


def opened(job: Job, descriptor: int) -> Wire | None:
    """The connection behind a descriptor, once whoever is at its other end has proved itself; None if that failed."""
    assert job.listening is not None, "whoever has a deputy comes through the door"
    with suppress(OSError, ProofError):
        return accept(socket.socket(fileno=descriptor), job.listening.token, job.listening.credentials)
    return None


def first_words(wire: Wire) -> remote.FromNewcomer | None:
    """What a connection begins with, if that came in time."""
    frame = wire.receive(HANDSHAKE_S)
    return decode_knock(frame.body) if frame is not None else None
