"""A line to one voter, at the side of who leads or may lead. It has a thread of its own, so a voter that reads nothing holds up
nobody else. What was not sent yet is dropped for what is newer.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from plesio.protocol.coding import decoder_of
from plesio.protocol.headship import FromVoter, Votes
from plesio.transport.channel import close_quietly
from plesio.transport.limits import HANDSHAKE_S, LEASE_S
from plesio.transport.wire import FrameKind, Wire

decode: Callable[[bytes], FromVoter] = decoder_of(FromVoter)


class VoterLine:
    """Over a connection, which it takes over."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lock = threading.Lock()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outbox: dict[str, tuple[FrameKind, bytes]] = {}

    def say(self, what: str, body: bytes) -> None:
        """Send this as soon as it can be. It takes the place of what was to be said of the same kind (`what`); without a `body`
        it is a bare beat."""
        with self._lock:
            self._outbox[what] = (FrameKind.SESSION if body else FrameKind.BEAT, body)
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def voter(self) -> int:
        """Who it is: the first that comes."""
        frame = self._wire.receive(HANDSHAKE_S)
        if frame is None or frame.kind is not FrameKind.SESSION or not isinstance(said := decode(frame.body), Votes):
            self._wire.refuse("no name to vote by")
        return said.name

    def run(self, hear: Callable[[FromVoter], None]) -> None:
        """Send, and `hear` what comes, until the voter is gone, or silent for `LEASE_S`."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        poller.register(self._wire.fileno(), select.POLLIN)
        heard_s = time.monotonic()
        while time.monotonic() - heard_s < LEASE_S:
            poller.poll(1000 * LEASE_S)
            self._send()
            while (frame := self._wire.receive(0.0)) is not None:
                heard_s = time.monotonic()
                if frame.kind is FrameKind.SESSION:
                    hear(decode(frame.body))

    def _send(self) -> None:
        with self._lock:
            outbox, self._outbox = self._outbox, {}
            with suppress(BlockingIOError):  # it was the voter who spoke
                os.eventfd_read(self._bell)
        for kind, body in outbox.values():
            self._wire.send(kind, body)

    def cut(self) -> None:
        """End it, under its thread."""
        self._wire.cut()

    def close(self) -> None:
        with self._lock:
            bell, self._bell = self._bell, -1
        close_quietly(bell)
        self._wire.close()
