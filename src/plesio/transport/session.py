"""Frames that survive the connection: each takes effect exactly once and in order, wherever the line was cut.

Each side numbers the frames it sends and counts those it has received whole; every head tells that count. What was sent is kept
until the other side has it. On the next connection each side tells its count, and the other sends again what comes after it.
Beats are not counted: they are of the moment.

A payload is not copied: it is sent again from where it lies. That is right because nothing is overwritten that is outstanding. A
worker overwrites its gradients only after the answer, and the head of the answer acknowledges them; the server overwrites a
version only after the worker's next contribution, or its word that it dropped a step. For rows of tables see
`plesio.transport.row_payloads`.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from plesio.transport.limits import BEAT_S, UNACKNOWLEDGED_MAX
from plesio.transport.wire import ConnectionLostError, Frame, FrameKind, RemoteProtocolError, Wire


class UnacknowledgedFrame(NamedTuple):
    """A frame that was sent and is not acknowledged."""

    kind: FrameKind
    body: bytes
    payload: Sequence[memoryview]


class Session:
    """One side of a conversation with `peer` over one connection after another; without one at first, `resume` gives it.

    The thread that receives also resumes and closes. Another one may send: `lock` is held for each use of the connection.
    """

    def __init__(self, wire: Wire | None, peer: str) -> None:
        self.peer = peer
        self.received = 0
        """How many counted frames came whole."""
        self.sent = 0
        """How many counted frames were sent, those included that are still to be sent again."""
        self.heard_s = self.told_s = time.monotonic()
        """When the other side was last heard, and last told something."""
        self.lock = threading.RLock()
        self.connection = wire
        """The connection of the moment."""
        self._kept: deque[UnacknowledgedFrame] = deque()
        self._owed = False  # a payload, which is still to be read

    def fileno(self) -> int:
        """The descriptor, for polling; -1 without a connection."""
        return self.connection.fileno() if self.connection else -1

    @property
    def hung_up(self) -> bool:
        """Whether there is no connection, or the other side has closed it. Not while another thread uses it, which finds out."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.fileno() < 0:
                return True
            poller = select.poll()
            poller.register(self.fileno(), select.POLLRDHUP)
            return bool(poller.poll(0))
        finally:
            self.lock.release()

    @property
    def unacknowledged(self) -> int:
        """How many frames the other side may not have yet."""
        return len(self._kept)

    @property
    def has_input(self) -> bool:
        """Whether bytes have come that `poll` does not see."""
        with self.lock:
            return self.connection is not None and self.connection.has_input

    def send(self, kind: FrameKind, body: bytes, payload: Sequence[memoryview] = ()) -> None:
        """Send one frame. Where that fails, a counted frame is kept all the same, and `resume` sends it.

        Raises:
            ConnectionLostError: there is no connection, or there is none any more.
            RemoteProtocolError: the other side acknowledges nothing.
        """
        with self.lock:
            if kind is not FrameKind.BEAT:
                if len(self._kept) >= UNACKNOWLEDGED_MAX:
                    raise RemoteProtocolError(
                        f"{self.peer} has acknowledged none of the last {len(self._kept)} messages"
                    )
                self.sent += 1
                self._kept.append(UnacknowledgedFrame(kind, body, payload))
            self._put(kind, body, payload, self.sent)

    def _put(self, kind: FrameKind, body: bytes, payload: Sequence[memoryview], number: int) -> None:
        wire = self._connection()
        wire.send(kind, body, payload, self.received, number)
        self.told_s = time.monotonic()
        if payload:  # the other side had to read it
            self.heard_s = self.told_s

    def beat(self) -> None:
        """Tell the other side that this one is there, if it was told nothing for `BEAT_S` and nobody uses the connection.

        Raises:
            ConnectionLostError: as in `send`.
        """
        if time.monotonic() - self.told_s < BEAT_S or not self.lock.acquire(blocking=False):
            return
        try:
            self.send(FrameKind.BEAT, b"")
        finally:
            self.lock.release()

    def receive(self, timeout_s: float) -> Frame | None:
        """The next frame that is no beat; None if none began within `timeout_s`. Others can send while this waits.

        If the frame has a payload, `read_payload` must come next; the frame counts only then. Where that fails, the frame is to
        be forgotten: it comes again.

        Raises:
            ConnectionLostError: there is no connection, or there is none any more.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            wire = self._connection()
            if not self.has_input and not wire.wait(max(0.0, end_s - time.monotonic())):
                return None
            with self.lock:
                frame = wire.receive(0.0)
                if frame is not None and self._taken(wire, frame):
                    return frame
            if not self.has_input and time.monotonic() >= end_s:  # else a frame waits behind a beat, and no poll tells
                return None

    def _taken(self, wire: Wire, frame: Frame) -> bool:
        """Note what its head says; whether it is for the caller."""
        self.heard_s = time.monotonic()
        self._forget(wire, wire.acknowledged)
        is_beat = frame.kind is FrameKind.BEAT  # it has the number of the last frame before it
        expected = (self.received + (not is_beat)) & 0xFFFF
        if wire.number != expected:
            wire.refuse(
                f"frame {wire.number} where {expected} comes next (modulo 65,536): frames were lost, doubled or exchanged on "
                "the way"
            )
        if is_beat:
            return False
        self._owed = frame.payload_bytes > 0
        self.received += not self._owed
        return True

    def read_payload(self, into: Sequence[memoryview]) -> None:
        """Read the payload of the last frame to where it belongs; raises as `Wire.read_payload` does."""
        with self.lock:
            assert self._owed, "the last frame has a payload"
            self._connection().read_payload(into)
            self.heard_s = time.monotonic()
            self.received += 1
            self._owed = False

    def resume(self, wire: Wire, their_received: int) -> None:
        """Go on over another connection: send again what the other side, which has told its count, did not receive.

        Raises:
            ConnectionLostError: that one is lost, too.
            RemoteProtocolError: the other side cannot have received so many.
        """
        with self.lock:
            self.close()
            self._forget(wire, their_received)
            self.connection, self._owed = wire, False
            self.heard_s = time.monotonic()
            for number, kept in enumerate(list(self._kept), self.sent - len(self._kept) + 1):
                self._put(*kept, number)

    def _forget(self, wire: Wire, acknowledged: int) -> None:
        """What the other side has is not sent again."""
        least = self.sent - len(self._kept)
        if not least <= acknowledged <= self.sent:
            wire.refuse(f"word that it has received {acknowledged} messages; {least} to {self.sent} are possible")
        for _ in range(acknowledged - least):
            self._kept.popleft()

    def _connection(self) -> Wire:
        if self.connection is None:
            raise ConnectionLostError(f"there is no connection to {self.peer}")
        return self.connection

    def close(self) -> None:
        """Hang up. The session can go on over another connection."""
        with self.lock:
            if self.connection is not None:
                self.connection.close()
                self.connection = None


class Pulse:
    """A thread that beats for a worker whose main thread computes, until `close`; `beat` is a session's."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plesio-pulse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(BEAT_S / 2):
            with suppress(Exception):  # the main thread finds out by itself
                self._beat()

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join()
