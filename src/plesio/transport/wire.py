"""A connection between two hosts, as everything above it sees it: frames, each with a small message and perhaps a payload.

`plesio.transport.socket_wire` is the one over TCP, in the clear or in TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NoReturn, Protocol

from plesio.protocol.coding import ProtocolError


class FrameKind(IntEnum):
    """What a frame's message belongs to."""

    SESSION = 0
    """Joining (`plesio.protocol.remote`)."""
    CHANNEL = 1
    """What worker and server say beside training (`plesio.protocol.worker`)."""
    DOORBELL = 2
    """A worker's messages while it trains."""
    LAUNCHER = 3
    """A worker's messages to the launcher (`plesio.protocol.launcher`)."""
    ANSWER = 4
    """The answers to a doorbell."""
    TENSORS = 5
    """Parameters that were asked for."""
    PULL = 6
    """A worker asks for parameters."""
    BEAT = 7
    """I am still here."""


class ConnectionLostError(Exception):
    """The connection ended, or no byte moved in time."""


class HungUpError(ConnectionLostError):
    """The other side closed the connection, or its system did: perhaps it ended."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what is no frame, or not one that may come now.

    >>> import socket
    >>> from plesio.transport.socket_wire import SocketWire
    >>> left, right = socket.socketpair()
    >>> left.sendall(b"GET / HTTP/1.1" + 100 * b" ")
    >>> try:
    ...     SocketWire(right, "worker 1").receive(timeout_s=1.0)
    ... except RemoteProtocolError as error:
    ...     print(error)
    worker 1 sent a frame of kind 71; known: 0 SESSION, ...
    >>> left.close(); right.close()
    """


class DamagedError(RemoteProtocolError, ConnectionLostError):
    """What came is no frame, or not the next one: it was damaged on the way. Where there is a session it is sent again, over
    another connection."""


class Frame(NamedTuple):
    """What came. Its payload, if there is one, is still to be read."""

    kind: FrameKind
    body: bytes
    payload_bytes: int


class Wire(Protocol):
    """One end of a connection; `peer` names the other side in errors.

    Attributes:
        acknowledged: how many frames the other side had received when it sent the last one.
        number: of the last frame that came, modulo 65,536.
        eager: whether `send` reads ahead what comes meanwhile, so that both sides may send at the same time. One of them has to.
    """

    eager: bool
    peer: str
    acknowledged: int
    number: int

    def fileno(self) -> int:
        """The descriptor, for polling; -1 once closed."""

    @property
    def has_input(self) -> bool:
        """Whether bytes have come that `poll` does not see."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until bytes (or the end of the file) come; False if none did."""

    def send(
        self, kind: FrameKind, body: bytes, payload: Sequence[memoryview] = (), received: int = 0, number: int = 0
    ) -> None:
        """Send one frame, from where its payload lies.

        Raises:
            ConnectionLostError: the other side is gone, or took no byte for `LEASE_S`.
        """

    def receive(self, timeout_s: float) -> Frame | None:
        """The next frame, its message whole; None if none began within `timeout_s`.

        If it has a payload, `read_payload` must come next.

        Raises:
            ConnectionLostError: the other side is gone, or stopped for `LEASE_S` in the middle.
            DamagedError: what came is no frame.
        """

    def read_payload(self, into: Sequence[memoryview]) -> None:
        """Read the payload of the last frame to where it belongs.

        Raises:
            ConnectionLostError: the other side is gone, or stopped for `LEASE_S`.
            RemoteProtocolError: it is not as long as `into`; nothing is read then.
            DamagedError: it was damaged.
        """

    def refuse(self, what: str) -> NoReturn:
        """End the connection because of what came over it.

        Raises:
            DamagedError: always.
        """

    def cut(self) -> None:
        """End it for both sides, and for whichever thread uses it. The descriptor stays open: one may be polling it."""

    def part(self) -> None:
        """Hang up, after the other side had time to read all."""

    def close(self) -> None:
        """Hang up."""
