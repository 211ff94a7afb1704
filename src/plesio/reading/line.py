"""A reader's line with the process that serves it: a socket of this host, over which descriptors travel, or a TCP connection.

Both ends use these. A message comes with weights: near by a descriptor of where they lie, from far by their bytes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from plesio.errors import DeadlineError
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly
from plesio.transport.wire import ConnectionLostError, FrameKind, Wire

M = TypeVar("M")


class LineLostError(Exception):
    """The other side is gone, or said what it may not."""


class Weights(Protocol):
    """Those of a version, where the readers' process has them."""

    fd: int
    bytes: memoryview


class Line(Generic[M]):
    """One end, on which messages of a union come in."""

    said_bytes = 0
    """What this side sent so far."""

    def fileno(self) -> int:
        raise NotImplementedError

    def hear(self, timeout_s: float) -> M | None:
        """The next message; None if none came in time. Descriptors, or bytes, that came with it are `taken` next."""
        raise NotImplementedError

    def say(self, message: object, *descriptors: int) -> None:
        raise NotImplementedError

    def lend(self, message: object, weights: Weights) -> None:
        """With all weights."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NearLine(Line[M]):
    """Over a Unix socket, which it takes over."""

    def __init__(self, descriptor: int, kinds: Any, peer: str) -> None:
        self._channel: Channel[M] = Channel.attach(descriptor, kinds, peer)
        self._came: list[int] = []

    def fileno(self) -> int:
        return self._channel.fileno()

    def hear(self, timeout_s: float) -> M | None:
        close_quietly(*self.taken())
        try:
            message, self._came = self._channel.receive(timeout_s)
        except DeadlineError:
            return None
        except (ChannelClosedError, ProtocolError) as error:
            raise LineLostError(str(error)) from None
        return message

    def taken(self) -> list[int]:
        """The descriptors that came with the last message."""
        came, self._came = self._came, []
        return came

    def say(self, message: object, *descriptors: int) -> None:
        try:
            self._channel.send(message, descriptors)
        except ChannelClosedError as error:
            raise LineLostError(str(error)) from None

    def lend(self, message: object, weights: Weights) -> None:
        self.say(message, weights.fd)
        self.said_bytes += len(weights.bytes)

    def close(self) -> None:
        close_quietly(*self.taken())
        self._channel.close()


class FarLine(Line[M]):
    """Over a connection, which it takes over."""

    def __init__(self, wire: Wire, kinds: Any) -> None:
        self._wire = wire
        self._decode: Callable[[bytes], M] = decoder_of(kinds)
        self.payload_bytes = 0
        """That came with the last message, and are still to be read."""

    def fileno(self) -> int:
        return self._wire.fileno()

    def hear(self, timeout_s: float) -> M | None:
        try:
            frame = self._wire.receive(timeout_s)
            if frame is None:
                return None
            self.payload_bytes = frame.payload_bytes
            return self._decode(frame.body)
        except (ConnectionLostError, ProtocolError) as error:
            raise LineLostError(str(error)) from None

    def take(self, into: Sequence[memoryview]) -> None:
        """Read the bytes that came with the last message to where they belong."""
        try:
            self._wire.read_payload(into)
        except (ConnectionLostError, ProtocolError) as error:
            raise LineLostError(str(error)) from None

    def say(self, message: object, *descriptors: int) -> None:
        self.send(message, ())

    def send(self, message: object, payload: Sequence[memoryview]) -> None:
        """With these bytes."""
        try:
            self._wire.send(FrameKind.CHANNEL, encode(message), payload)
        except ConnectionLostError as error:
            raise LineLostError(str(error)) from None
        self.said_bytes += sum(len(one) for one in payload)

    def lend(self, message: object, weights: Weights) -> None:
        self.send(message, [weights.bytes])

    def close(self) -> None:
        self._wire.close()


def proof_of(token: str, nonce: bytes) -> bytes:
    """That whoever says what a run's metrics are knows the token of its workers."""
    return hmac.digest(token.encode(), b"plesio measured 1" + nonce, "sha256")


def read_token(token: str) -> str:
    """The token of readers, where none was chosen: whoever knows that of workers knows it, and not the other way round."""
    return hmac.digest(token.encode(), b"plesio readers 1", "sha256").hex()
