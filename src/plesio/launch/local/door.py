"""The door: a process that listens for workers of other hosts, and of this one, and lets in who proves to know the token.

It reads 48 bytes of each connection, and parses nothing. Who proves itself goes to the launcher, as a descriptor: behind it
nothing is read yet, so that another process can begin with TLS. All others are closed within a second, and the launcher is told
once an address.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from plesio.launch.job import Job
from plesio.launch.local.handlers import Handlers
from plesio.protocol.launcher import Arrived, FromDoor, TurnedAway
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.connect import user_of
from plesio.transport.limits import CROWDED_S, LOGGED_MAX, PROOF_S, UNPROVEN_MAX
from plesio.transport.secure import NONCE_BYTES, PROOF_BYTES, RIGHT, TICKET_BYTES, WRONG, mac

TICK_S = 0.05  # how often it is looked whose time is up


@dataclass(slots=True, eq=False)
class Stranger:
    """A connection that has not proved itself; `got`: the beginning of its proof."""

    connection: socket.socket
    address: str
    local: bool
    nonce: bytes
    since_s: float
    got: bytes = b""


class Door:
    """Lets in who knows `token`, and tells the `launcher`, whose end ends this, too. `listening`: sockets that listen already:
    TCP's, and Unix's for workers of this host."""

    def __init__(self, launcher: Channel[FromDoor], listening: Sequence[socket.socket], token: str) -> None:
        self._launcher = launcher
        self._listening = listening
        self._token = token
        self._strangers: list[Stranger] = []  # the oldest first
        self._told: set[str] = set()
        self._handlers = Handlers()
        self._handlers.poller.register(launcher.fileno(), select.POLLIN)
        for one in listening:
            self._handlers.add(one.fileno(), partial(self._meet, one))
            one.setblocking(False)

    @property
    def _crowded(self) -> bool:
        return len(self._strangers) >= UNPROVEN_MAX

    def run(self) -> None:
        """Until the launcher hangs up. Whoever waits here is hung up on then, to try the next door."""
        with suppress(ChannelClosedError):
            while self._hears():
                self._look_at_the_clock()
        for stranger in [*self._strangers]:
            self._close(stranger)

    def _hears(self) -> bool:
        """Hear out whoever says something, or comes; False: the launcher has hung up."""
        poller = self._handlers.poller
        for listener in self._listening:
            poller.modify(listener, 0 if self._crowded else select.POLLIN)
        for descriptor, _ in poller.poll(TICK_S * 1000 if self._strangers else None):
            if descriptor == self._launcher.fileno():
                return False
            self._handlers.call(descriptor)
        return True

    def _meet(self, listener: socket.socket) -> None:
        """Take the next of the queue and challenge it."""
        try:
            connection, address = listener.accept()
        except OSError:  # it has gone already
            return
        local = listener.family == socket.AF_UNIX
        told = f"user {user_of(connection)} of this host" if local else address[0]
        stranger = Stranger(connection, told, local, secrets.token_bytes(NONCE_BYTES), time.monotonic())
        self._strangers.append(stranger)
        self._handlers.add(connection.fileno(), partial(self._hear, stranger))
        connection.setblocking(False)
        with suppress(OSError):  # it has gone: that is read below
            connection.send(stranger.nonce)

    def _hear(self, stranger: Stranger) -> None:
        try:
            got = stranger.connection.recv(PROOF_BYTES - len(stranger.got))
        except BlockingIOError:
            return
        except OSError:
            got = b""
        stranger.got += got
        if not got:
            self._turn_away(stranger, "it said nothing that could be a proof")
        elif len(stranger.got) == PROOF_BYTES:
            ticket, proof = stranger.got[:TICKET_BYTES], stranger.got[TICKET_BYTES:]
            right = hmac.compare_digest(proof, mac(self._token, stranger.nonce, ticket))
            with suppress(OSError):  # it has gone meanwhile
                stranger.connection.send(RIGHT if right else WRONG)
            if right:
                self._let_in(stranger, ticket)
            else:
                self._turn_away(stranger, "its token is not the run's")

    def _let_in(self, stranger: Stranger, ticket: bytes) -> None:
        stranger.connection.setblocking(True)
        self._launcher.send(Arrived(stranger.address, ticket, stranger.local), [stranger.connection.fileno()])
        self._close(stranger)

    def _turn_away(self, stranger: Stranger, why: str) -> None:
        self._close(stranger)
        if stranger.address not in self._told and len(self._told) < LOGGED_MAX:
            self._told.add(stranger.address)
            self._launcher.send(TurnedAway(stranger.address, why))

    def _close(self, stranger: Stranger) -> None:
        self._handlers.remove(stranger.connection.fileno())
        self._strangers.remove(stranger)
        stranger.connection.close()

    def _look_at_the_clock(self) -> None:
        """Close those whose time is up; it is shorter while others wait behind them."""
        oldest_s = time.monotonic() - (CROWDED_S if self._crowded else PROOF_S)
        for stranger in [one for one in self._strangers if one.since_s < oldest_s]:
            self._turn_away(stranger, f"it did not prove to know the token within {PROOF_S:g} s")


def main(job: Job, descriptors: list[int], reads: int = 0) -> None:
    """Entry of the door process. `descriptors`: the launcher, and the sockets that listen. `reads`: it is for readers, whose
    process is in the launcher's place."""
    place = job.reading if reads else job.listening
    assert place is not None, "otherwise there is no door"
    launcher: Channel[FromDoor] = Channel.attach(descriptors[0], FromDoor, "the launcher")
    listening = [socket.socket(fileno=descriptor) for descriptor in descriptors[1:]]
    Door(launcher, listening, place.token).run()
