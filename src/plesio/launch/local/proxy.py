"""A proxy: the process that stands for somebody of another host, with whom it has a session. Who that is may be away for a while.

What comes is looked up in a table (`plesio.transport.routes`): whether it may come now, where its bytes belong, what it changes.
Then the frame's kind says to whom it is passed on.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic

from plesio.launch.job import Job
from plesio.protocol import remote
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.launcher import Failed, Finished
from plesio.system.memory import SharedBlock
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.connect import accept
from plesio.transport.doorbell import Lookout
from plesio.transport.limits import BEAT_S, HANDSHAKE_S, LEASE_S, RETURN_S
from plesio.transport.routes import Routes, T
from plesio.transport.secure import ProofError
from plesio.transport.session import Session
from plesio.transport.wire import ConnectionLostError, Frame, FrameKind, HungUpError, Wire

TICK_S = 0.2
Launcher = Channel[remote.ToProxy]
decode_knock: Callable[[bytes], remote.FromNewcomer] = decoder_of(remote.FromNewcomer)


class Proxy(Generic[T]):
    """Of `name`, who is at the other end of `session`, says what is in `routes`, and is as far as `dialogue` says."""

    eager = False
    """Whether both sides may send at the same time."""

    def __init__(
        self, job: Job, name: str, launcher: Launcher, session: Session, routes: Routes[T], dialogue: T
    ) -> None:
        self._job, self._name = job, name
        self._launcher, self._session = launcher, session
        self._routes, self._dialogue = routes, dialogue
        self._poller = select.poll()
        self._poller.register(launcher.fileno(), select.POLLIN)
        self._hears: dict[int, Callable[[], None]] = {}
        self._to: dict[FrameKind, Callable[[Frame, Any], None]] = {
            FrameKind.LAUNCHER: self._to_launcher,
            FrameKind.SESSION: self._part,
        }
        self._parted = False
        self._until_s = 0.0  # without a connection: when the time to come back is over

    def _listen(self, descriptor: int, hear: Callable[[], None]) -> None:
        """What to do when it can be read."""
        self._hears[descriptor] = hear
        self._poller.register(descriptor, select.POLLIN)

    def _attend(self, channel: Channel[Any], take: Callable[[Any, Sequence[int]], None]) -> None:
        """What to do with what comes on this channel. If it is closed, the run is over, or the launcher says why."""

        def hear() -> None:
            try:
                said = channel.receive(LEASE_S)
            except ChannelClosedError:
                del self._hears[channel.fileno()]
                self._poller.unregister(channel.fileno())
            else:
                take(*said)

        self._listen(channel.fileno(), hear)

    def _from_far(self) -> bool:
        """Take one frame; whether another may follow."""
        frame = self._session.receive(0.0)
        if frame is None:
            return False
        message = self._routes.decoded(frame)
        into = self._routes.into(self._dialogue, message, frame.payload_bytes)
        if frame.payload_bytes:
            self._session.read_payload(into)
        self._pass_on(frame, message, self._routes.note(self._dialogue, message))
        return not self._parted

    def _pass_on(self, frame: Frame, message: Any, noted: Any) -> None:
        """It has come; `noted`: what the table made of it. Where nobody is told, nobody else need know."""
        if (back := self._routes[type(message)].back) is not None:
            self._session.send(FrameKind.TENSORS, b"", back(self._dialogue, message))
        elif frame.kind in self._to:
            self._to[frame.kind](frame, message)

    def _to_launcher(self, frame: Frame, message: Any) -> None:
        self._launcher.send(message)
        if isinstance(message, (Finished, Failed)):
            self._session.send(FrameKind.BEAT, b"")  # it waits for the word that this has come

    def _part(self, frame: Frame, message: Any) -> None:
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
            self._session.send(FrameKind.SESSION, encode(message))
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
            wire.send(FrameKind.SESSION, encode(remote.LineResumed(self._session.received)))
        except (ConnectionLostError, ProtocolError):
            wire.close()
            return
        self._until_s, wire.eager = 0.0, self.eager
        self._session.resume(wire, knock.received)
        self._launcher.send(remote.Away(False))


def opened(job: Job, descriptor: int) -> Wire | None:
    """The connection behind a descriptor, once whoever is at its other end has proved itself; None if that failed."""
    assert job.listening is not None, "whoever has a proxy comes through the door"
    with suppress(OSError, ProofError):
        return accept(socket.socket(fileno=descriptor), job.listening.token, job.listening.credentials)
    return None


def first_words(wire: Wire) -> remote.FromNewcomer | None:
    """What a connection begins with, if that came in time."""
    frame = wire.receive(HANDSHAKE_S)
    return decode_knock(frame.body) if frame is not None else None


def parts(descriptor: int, nbytes: int, count: int) -> list[memoryview]:
    """The block behind a descriptor, cut into `count` arenas' bytes."""
    block = SharedBlock(descriptor, nbytes * count)
    whole = block.memory.numpy().data
    block.close()
    return [whole[index * nbytes : (index + 1) * nbytes] for index in range(count)]
