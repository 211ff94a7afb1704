"""A two-way line between two processes of one host for rare messages: set-up, data leases, results.

A message is its length and a typed msgspec struct; file descriptors travel with it. The end of the file says that the other
side is gone. Nothing is unpickled here.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from plesio.errors import DeadlineError
from plesio.protocol.coding import decoder_of, encode

HEAD = struct.Struct("<I")
NUMBERED_HEAD = struct.Struct("<II")
"""A length, and the message's number; 0: it has none. A sender's successor may send a message again, under the same number."""
MESSAGE_BYTES_MAX = 256 * 1024 * 1024
DESCRIPTORS_MAX = 250
"""What Linux passes in one message is 253."""
KEPT_MAX = 10_000
"""How many messages are kept for a receiver that does not read. Then the sender waits for it."""

M = TypeVar("M")


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel(Generic[M]):
    """One end of a line on which messages of the union `kinds` come in; `ChannelClosedError` when the other side is gone.

    >>> left, right = channel_pair()
    >>> a, b = Channel(left, int, "b"), Channel(right, int, "a")
    >>> a.send(7); b.receive(timeout_s=1.0)
    (7, [])
    >>> a.close(); b.close()
    """

    def __init__(self, connection: socket.socket, kinds: type[M] | object, peer: str) -> None:
        self._socket = connection
        self._decode: Callable[[bytes], M] = decoder_of(kinds)
        self.peer = peer
        self._kept: deque[object] = deque()
        self._heard = 0  # the number of the last message

    @classmethod
    def attach(cls, descriptor: int, kinds: type[M] | object, peer: str) -> Channel[M]:
        """The end behind a descriptor that came from another process; takes the descriptor over."""
        return cls(socket.socket(fileno=descriptor), kinds, peer)

    def fileno(self) -> int:
        """The descriptor, for polling; -1 once closed."""
        return self._socket.fileno()

    @property
    def has_room(self) -> bool:
        """Whether a small message can be sent without waiting."""
        return _polled(self.fileno(), select.POLLOUT, 0.0)

    def send_in_time(self, message: object) -> None:
        """Send one small message without waiting. While the receiver is stopped it is kept, and sent before any other."""
        self._kept.append(message)
        while self._kept and (self.has_room or len(self._kept) > KEPT_MAX):
            self._send(self._kept.popleft())

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        while self._kept:
            self._send(self._kept.popleft())
        self._send(message, descriptors)

    def _send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        body = encode(message)
        assert len(body) <= MESSAGE_BYTES_MAX, "a message is small"
        self._put(NUMBERED_HEAD.pack(len(body), self._number()) + body, descriptors)

    def _number(self) -> int:
        """The next message's."""
        return 0

    def _put(self, data: bytes, descriptors: Sequence[int]) -> None:
        try:
            # in one piece: a sender that is stopped between head and body would block the reader
            sent = socket.send_fds(self._socket, [data], list(descriptors))
            if sent < len(data):  # whoever has all of it may have closed the line by now
                self._socket.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError(self.peer) from error

    def receive(self, timeout_s: float, waiting_for: str = "a message") -> tuple[M, list[int]]:
        """Wait for one message; it and the descriptors that came with it. One that came before is dropped.

        If the sender stops in the middle of a message the line is closed: its next message could not be told from the rest.

        Raises:
            ChannelClosedError: the message did not come whole in time.
            DeadlineError: nothing came in time.
            ProtocolError: what came is no message that this end takes.
        """
        while (heard := self.hear(timeout_s, waiting_for)) is None:
            pass
        return heard

    def hear(self, timeout_s: float, waiting_for: str = "a message") -> tuple[M, list[int]] | None:
        """As `receive`; None for a message that came before."""
        end_s = time.monotonic() + timeout_s
        if not self._is_readable(timeout_s):
            raise DeadlineError(f"waited {timeout_s:g} s for {waiting_for} from {self.peer}: nothing came")
        descriptors: Sequence[int] = ()
        try:
            head, descriptors = self._begun(NUMBERED_HEAD.size)
            if not head:
                raise ChannelClosedError(self.peer)
            size, number = NUMBERED_HEAD.unpack(head + self._exactly(NUMBERED_HEAD.size - len(head), end_s))
            if size > MESSAGE_BYTES_MAX:
                raise ChannelClosedError(f"{self.peer} announced a message of {size} bytes")
            body = self._exactly(size, end_s)
            if 0 < number <= self._heard:
                close_quietly(*descriptors)
                return None
            self._heard = number or self._heard
            return self._decode(body), list(descriptors)
        except Exception as error:
            close_quietly(*descriptors)
            if isinstance(error, ConnectionResetError):
                raise ChannelClosedError(self.peer) from error
            raise

    def _exactly(self, size: int, end_s: float) -> bytes:
        body = bytearray()
        while len(body) < size:
            if not self._is_readable(max(0.0, end_s - time.monotonic())):
                with contextlib.suppress(OSError):  # it may have gone this very moment
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise ChannelClosedError(f"{self.peer} stopped in the middle of a message")
            got = self._more(size - len(body))
            if not got:
                raise ChannelClosedError(self.peer)
            body += got
        return bytes(body)

    def _is_readable(self, timeout_s: float) -> bool:
        return readable(self._socket.fileno(), timeout_s)

    def _begun(self, size: int) -> tuple[bytes, Sequence[int]]:
        """At most the first `size` bytes of a message, and its descriptors."""
        head, descriptors, _, _ = socket.recv_fds(self._socket, size, DESCRIPTORS_MAX)
        return head, descriptors

    def _more(self, size: int) -> bytes:
        """At most so many of the rest."""
        return self._socket.recv(size)

    def close(self) -> None:
        self._socket.close()


def readable(descriptor: int, timeout_s: float) -> bool:
    """Whether there is something to read (or the end of the file) within `timeout_s`."""
    return _polled(descriptor, select.POLLIN, timeout_s)


def _polled(descriptor: int, event: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    return bool(poller.poll(timeout_s * 1000))


def channel_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def close_quietly(*descriptors: int) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
