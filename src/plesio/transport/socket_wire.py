"""Frames over one connected socket: a fixed head, a small message, and a payload that goes from memory to memory.

| bytes | what                                                                                                       |
| ----- | ---------------------------------------------------------------------------------------------------------- |
| 1, 1  | kind; 0                                                                                                    |
| 2     | number of this frame, modulo 65,536, where a session counts (`plesio.transport.session`); 0 elsewhere      |
| 4     | bytes of the message                                                                                       |
| 8     | how many frames the sender has received so far: an acknowledgement                                         |
| 8     | bytes of the payload                                                                                       |
| 8     | xxh3-64 of the head before it and the message                                                              |
| ...   | message; payload; where there is a payload its xxh3-64 (8 bytes)                                           |

TLS authenticates every byte: there the first checksum is 0 and the second is left out. Whatever bytes come, they are a frame,
or `RemoteProtocolError`, and nothing is allocated because a stranger announced it. After an error a wire is of no use.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from xxhash import xxh3_64, xxh3_64_intdigest

from plesio.transport.doorbell import Lookout
from plesio.transport.limits import (
    JOINED_BYTES_MAX,
    LEASE_S,
    MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PIECE_BYTES,
    PIECES_MAX,
    READ_AHEAD_BYTES,
    SMALL_BYTES_MAX,
)
from plesio.transport.secure import part
from plesio.transport.wire import (
    ConnectionLostError,
    DamagedError,
    Frame,
    FrameKind,
    HungUpError,
    RemoteProtocolError,
    Wire,
)

HEAD = struct.Struct("<BBHIQQ")
CHECKSUM = struct.Struct("<Q")
TIMEVAL = struct.Struct("@ll")
HEAD_BYTES = HEAD.size + CHECKSUM.size
KINDS = tuple(FrameKind)
WITH_PAYLOAD = frozenset({FrameKind.CHANNEL, FrameKind.DOORBELL, FrameKind.ANSWER, FrameKind.TENSORS})


class SocketWire(Wire):
    """One end of a connection, which it takes over; `peer` names the other side in errors.

    >>> left, right = socket.socketpair()
    >>> a, b = SocketWire(left, "b"), SocketWire(right, "a")
    >>> a.send(FrameKind.DOORBELL, b"two bytes follow", [memoryview(b"xy")])
    >>> b.receive(timeout_s=1.0)
    Frame(kind=<FrameKind.DOORBELL: 2>, body=b'two bytes follow', payload_bytes=2)
    >>> b.read_payload([memoryview(place := bytearray(2))]); bytes(place)
    b'xy'
    >>> a.close(); b.close()
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.peer = peer
        self.acknowledged = 0
        self.number = 0
        self.eager = False
        self._socket = connection
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        connection.setblocking(self._tls is None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # plain: nobody is woken for a part
            connection.setsockopt(socket.SOL_SOCKET, option, TIMEVAL.pack(int(LEASE_S), round(LEASE_S % 1 * 1e6)))
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connection, select.POLLIN)
        self._writable.register(connection, select.POLLOUT)
        self._either = select.poll()
        self._either.register(connection, select.POLLIN | select.POLLOUT)
        self._early = bytearray()  # came while this side was sending
        self._lookout = Lookout(self._readable)
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._begin = self._end = 0  # of what was read ahead
        self._payload_bytes = 0  # still to be read
        self._broken = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_input(self) -> bool:
        """Whether bytes have come that `poll` does not see: read ahead, or in TLS's own buffer."""
        return self._begin < self._end or bool(self._early) or (self._tls is not None and self._tls.pending() > 0)

    def wait(self, timeout_s: float) -> bool:
        return bool(self._lookout.wait(timeout_s) if timeout_s > 0 else self._readable.poll(0))

    # Sending

    def send(
        self, kind: FrameKind, body: bytes, payload: Sequence[memoryview] = (), received: int = 0, number: int = 0
    ) -> None:
        nbytes = sum([view.nbytes for view in payload])
        head = HEAD.pack(kind, 0, number & 0xFFFF, len(body), received, nbytes)
        first = head + CHECKSUM.pack(0 if self._tls else xxh3_64_intdigest(head + body)) + body
        if nbytes > JOINED_BYTES_MAX:
            self._stream(first, [view.cast("B") for view in payload if view.nbytes])
        elif nbytes:
            joined = b"".join(payload)
            checksum = b"" if self._tls else CHECKSUM.pack(xxh3_64_intdigest(joined))
            self._put([memoryview(first + joined + checksum)])
        else:
            self._put([memoryview(first)])

    def _stream(self, first: bytes, payload: Sequence[memoryview]) -> None:
        """Send a large payload behind its message, piece by piece, each hashed just before the kernel copies it."""
        batch, size, checksum = [memoryview(first)], 0, xxh3_64()
        for view in payload:
            for at in range(0, len(view), PIECE_BYTES):
                piece = view[at : at + PIECE_BYTES]
                if not self._tls:
                    checksum.update(piece)
                batch.append(piece)
                size += len(piece)
                if size >= PIECE_BYTES or len(batch) >= PIECES_MAX:
                    self._put(batch)
                    batch, size = [], 0
        if not self._tls:
            batch.append(memoryview(CHECKSUM.pack(checksum.intdigest())))
        self._put(batch)

    def _put(self, batch: list[memoryview]) -> None:
        """Hand all of it to the kernel, and empty it."""
        while batch:
            if self._broken:
                self._lost("it was lost before")
            try:
                flags = socket.MSG_DONTWAIT if self.eager else 0
                sent = self._tls.send(batch[0]) if self._tls else self._socket.sendmsg(batch, (), flags)
            except (BlockingIOError, ssl.SSLWantWriteError):
                poller = self._either if self.eager else self._writable if self._tls else None
                if poller is None or not (found := poller.poll(LEASE_S * 1000)):
                    self._lost(f"it took no byte for {LEASE_S:g} s")
                if found[0][1] & select.POLLIN:
                    self._read_early()
                continue
            except OSError as error:
                self._lost(str(error), isinstance(error, ConnectionError))
            while batch and sent >= len(batch[0]):
                sent -= len(batch.pop(0))
            if sent:
                batch[0] = batch[0][sent:]

    def _read_early(self) -> None:
        """The other side may take nothing before this side has taken something."""
        try:
            if not (got := self._tls.recv(PIECE_BYTES) if self._tls else self._socket.recv(PIECE_BYTES)):
                self._lost("it closed the connection", hung_up=True)
            self._early += got
        except ssl.SSLWantReadError:
            pass  # not a whole record yet
        except OSError as error:
            self._lost(str(error), isinstance(error, ConnectionError))

    # Receiving

    def receive(self, timeout_s: float) -> Frame | None:
        assert not self._payload_bytes, "the payload is read first"
        if self._begin == self._end:
            end_s = time.monotonic() + timeout_s
            while not (got := self._read([self._ahead], socket.MSG_DONTWAIT)):
                if not self._readable.poll(max(0.0, end_s - time.monotonic()) * 1000):
                    return None
            self._begin, self._end = 0, got
        head = self._take(HEAD_BYTES)
        (checksum,) = CHECKSUM.unpack_from(head, HEAD.size)
        kind, zero, number, size, acknowledged, payload_bytes = HEAD.unpack_from(head)
        if kind >= len(KINDS):
            self.refuse(f"a frame of kind {kind}; known: {', '.join(f'{one.value} {one.name}' for one in FrameKind)}")
        if zero:
            self.refuse(f"a head with {zero} where 0 stands: it speaks another version")
        size_max = MESSAGE_BYTES_MAX if kind == FrameKind.CHANNEL else SMALL_BYTES_MAX
        if size > size_max:
            self.refuse(f"a message of {size} bytes ({KINDS[kind].name}); at most {size_max} are allowed")
        payload_max = PAYLOAD_BYTES_MAX if kind in WITH_PAYLOAD else 0
        if payload_bytes > payload_max:
            self.refuse(f"a payload of {payload_bytes} bytes ({KINDS[kind].name}); at most {payload_max} are allowed")
        body = self._take(size)
        expected = 0 if self._tls else xxh3_64_intdigest(head[: HEAD.size] + body)
        if checksum != expected:
            self._damaged("frame", checksum, expected)
        self.number, self.acknowledged, self._payload_bytes = number, acknowledged, payload_bytes
        return Frame(KINDS[kind], body, payload_bytes)

    def read_payload(self, into: Sequence[memoryview]) -> None:
        views = [view.cast("B") for view in into if view.nbytes]
        expected, announced = sum(map(len, views)), self._payload_bytes
        if announced != expected:
            self.cut()
            raise RemoteProtocolError(f"{self.peer} sent a payload of {announced} bytes; {expected} were expected")
        checksum = None if self._tls else xxh3_64()
        for view in views:
            self._fill(view, checksum)
        if checksum and announced:
            (told,) = CHECKSUM.unpack(self._take(CHECKSUM.size))
            if told != checksum.intdigest():
                self._damaged("payload", told, checksum.intdigest())
        self._payload_bytes = 0

    def _take(self, size: int) -> bytes:
        """The next `size` bytes; memory is taken as they come."""
        if size <= self._end - self._begin:
            self._begin += size
            return bytes(self._ahead[self._begin - size : self._begin])
        pieces: list[memoryview] = []
        while size:
            pieces.append(memoryview(bytearray(min(size, READ_AHEAD_BYTES))))
            self._fill(pieces[-1], None)
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _fill(self, view: memoryview, checksum: xxh3_64 | None) -> None:
        """Read as many bytes, and hash each piece as it is there."""
        for at in range(0, len(view), PIECE_BYTES):
            piece = view[at : at + PIECE_BYTES]
            got = self._get(piece)
            while got < len(piece):
                got += self._get(piece[got:])
            if checksum:
                checksum.update(piece)

    def _get(self, view: memoryview) -> int:
        """Fill the beginning of `view`, from what was read ahead or from the socket: how much of it."""
        if self._begin == self._end:
            if len(view) > READ_AHEAD_BYTES:
                got = self._read([view], socket.MSG_WAITALL)
            else:  # what follows comes in the same call
                got = self._read([view, self._ahead])
            if not got and not (self._tls and self._readable.poll(LEASE_S * 1000)):
                self._lost(f"no byte came for {LEASE_S:g} s")
            self._begin, self._end = 0, max(0, got - len(view))
            return min(got, len(view))
        got = min(len(view), self._end - self._begin)
        view[:got] = self._ahead[self._begin : self._begin + got]
        self._begin += got
        return got

    def _read(self, into: list[memoryview], flags: int = 0) -> int:
        """How many bytes the socket gave; 0 if there are none, for plain text within `LEASE_S` or as `flags` say."""
        if self._broken:
            self._lost("it was lost before")
        if self._early:
            got = min(len(into[0]), len(self._early))
            into[0][:got] = self._early[:got]
            del self._early[:got]
            return got
        try:
            got = self._tls.recv_into(into[0]) if self._tls else self._socket.recvmsg_into(into, 0, flags)[0]
        except (BlockingIOError, ssl.SSLWantReadError):
            return 0
        except OSError as error:
            self._lost(str(error), isinstance(error, ConnectionError))
        return got or self._lost("it closed the connection", hung_up=True)

    # Failing

    def _lost(self, why: str, hung_up: bool = False) -> NoReturn:
        self.cut()
        kind = HungUpError if hung_up else ConnectionLostError
        raise kind(f"the connection to {self.peer} is lost: {why}") from None

    def refuse(self, what: str) -> NoReturn:
        self.cut()
        raise DamagedError(f"{self.peer} sent {what}")

    def _damaged(self, what: str, told: int, found: int) -> NoReturn:
        self.refuse(f"a {what} whose checksum is {told:016x}, not {found:016x}: it was damaged on the way")

    def cut(self) -> None:
        self._broken = True
        with suppress(OSError):  # the other side may have ended it
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's, which would go on in plain text

    def part(self) -> None:
        self._broken = True
        part(self._socket)

    def close(self) -> None:
        self._broken = True
        self._socket.close()
