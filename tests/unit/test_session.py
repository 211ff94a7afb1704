"""A session's frames take effect exactly once and in order, wherever its connections are cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.transport import session as sessions
from plesio.transport.limits import LEASE_S
from plesio.transport.session import Pulse, Session
from plesio.transport.socket_wire import WITH_PAYLOAD, SocketWire
from plesio.transport.wire import ConnectionLostError, Frame, FrameKind, RemoteProtocolError
from support.long_forms import examples


def connected() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


@pytest.fixture
def pair() -> Iterator[tuple[Session, Session]]:
    left, right = connected()
    ends = Session(SocketWire(left, "the right"), "the right"), Session(SocketWire(right, "the left"), "the left")
    yield ends
    for end in ends:
        end.close()


class Cut(NamedTuple):
    """After how many bytes each way a connection ends."""

    there: int
    back: int


class CutLine:
    """A connection through a relay that ends it in the middle of anything."""

    def __init__(self, cut: Cut) -> None:
        self.left, near = connected()
        far, self.right = connected()
        ways = [(near, far, cut.there), (far, near, cut.back)]
        self._threads = [threading.Thread(target=self._relay, args=way, daemon=True) for way in ways]
        self._ends = near, far
        for thread in self._threads:
            thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := source.recv(min(left, 700))):
                sink.sendall(data)
                left -= len(data)
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()


class Side:
    """One of two that talk: sends its frames, each after so many of the other's as it is told, and notes what comes."""

    def __init__(self, name: str, frames: list[tuple[FrameKind, bytes, bytes]], awaited: int) -> None:
        self.session = Session(None, name)
        self.frames = frames
        self.got: list[tuple[FrameKind, bytes, bytes]] = []
        self.awaited = awaited
        self.failure: BaseException | None = None

    def talk(self, connection: socket.socket, their_received: int) -> None:
        """Until the connection is lost, or there is nothing left to say, nor to hear."""
        try:
            self.session.resume(SocketWire(connection, "the other"), their_received)
            while self.session.sent < len(self.frames) or len(self.got) < self.awaited or self.session._kept:
                # As in a run: a payload goes out when the one before it is acknowledged.
                if self.session.sent < len(self.frames) and not any(kept.payload for kept in self.session._kept):
                    kind, body, payload = self.frames[self.session.sent]
                    self.session.send(kind, body, [memoryview(payload)] if payload else ())
                    self.session.send(FrameKind.BEAT, b"not counted")
                self.hear()
            self.session.send(FrameKind.BEAT, b"")  # the last acknowledgement
        except ConnectionLostError:
            pass
        except BaseException as error:
            self.failure = error
        self.session.close()

    def hear(self) -> None:
        frame = self.session.receive(0.002)
        if frame is None:
            self.session.send(FrameKind.BEAT, b"")
        else:
            place = bytearray(frame.payload_bytes)
            if place:
                self.session.read_payload([memoryview(place)])
            self.got.append((frame.kind, frame.body, bytes(place)))


def talk(left: Side, right: Side, cuts: list[Cut]) -> None:
    """Both talk, over one connection after another; the last one is not cut."""
    for cut in [*cuts, Cut(1 << 40, 1 << 40)]:
        line = CutLine(cut)
        counts = left.session.received, right.session.received
        threads = [
            threading.Thread(target=left.talk, args=(line.left, counts[1])),
            threading.Thread(target=right.talk, args=(line.right, counts[0])),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        line.close()
        for side in (left, right):
            if side.failure:
                raise side.failure


counted = st.sampled_from(sorted(set(FrameKind) - {FrameKind.BEAT}))
frames = st.lists(
    st.tuples(counted, st.binary(max_size=60), st.sampled_from([b"", b"", b"p" * 40, b"q" * 9000])).map(
        lambda one: one if one[0] in WITH_PAYLOAD else (one[0], one[1], b"")
    ),
    max_size=6,
)
cuts = st.lists(st.builds(Cut, st.integers(0, 12_000), st.integers(0, 12_000)), max_size=8)


@pytest.mark.thorough
@given(frames, frames, cuts)
@settings(max_examples=examples(14), deadline=None)
def test_frames_take_effect_once_and_in_order(
    there: list[tuple[FrameKind, bytes, bytes]], back: list[tuple[FrameKind, bytes, bytes]], cuts: list[Cut]
) -> None:
    left, right = Side("right", there, len(back)), Side("left", back, len(there))
    talk(left, right, cuts)
    assert (right.got, left.got) == (there, back)


def test_a_cut_at_every_byte_of_a_frame() -> None:
    frame = (FrameKind.DOORBELL, b"message", b"payload")
    for cut in range(32 + 7 + 7 + 8 + 2):
        left, right = Side("right", [frame], 0), Side("left", [], 1)
        talk(left, right, [Cut(cut, 1 << 40)])
        assert right.got == [frame]


# What is not as it should be


def test_a_frame_that_comes_twice_is_refused(pair: tuple[Session, Session]) -> None:
    """As from a proxy that doubles what it forwards."""
    left, right = pair
    left.send(FrameKind.DOORBELL, b"one")
    assert right.receive(1.0) == Frame(FrameKind.DOORBELL, b"one", 0)
    left._connection().send(FrameKind.DOORBELL, b"one", number=1)
    with pytest.raises(RemoteProtocolError, match="sent frame 1 where 2 comes next"):
        right.receive(1.0)
    assert right.received == 1


@pytest.mark.parametrize("told", [0, 3])
def test_an_impossible_count_is_refused(pair: tuple[Session, Session], told: int) -> None:
    left, right = pair
    for _ in range(2):
        left.send(FrameKind.DOORBELL, b"")
        right.receive(1.0)
    right.send(FrameKind.ANSWER, b"")
    left.receive(1.0)
    near, far = connected()
    wire = SocketWire(near, "the right")
    with far, pytest.raises(RemoteProtocolError, match=f"that it has received {told} messages; 2 to 2 are possible"):
        left.resume(wire, told)
    wire.close()


def test_one_that_acknowledges_nothing_is_refused(
    pair: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "UNACKNOWLEDGED_MAX", 3)
    for _ in range(3):
        pair[0].send(FrameKind.DOORBELL, b"")
    with pytest.raises(RemoteProtocolError, match="the right has acknowledged none of the last 3 messages"):
        pair[0].send(FrameKind.DOORBELL, b"")
    assert pair[0].sent == 3


def test_a_frame_behind_a_beat_is_heard_at_once(pair: tuple[Session, Session]) -> None:
    """Both come in one piece: no poll tells of the second."""
    left, right = pair
    left.send(FrameKind.BEAT, b"")
    left.send(FrameKind.DOORBELL, b"behind")
    assert right.receive(0.0) == Frame(FrameKind.DOORBELL, b"behind", 0)


# Beats


def test_a_pulse_beats_while_the_main_thread_waits_but_not_on_a_connection_in_use(
    pair: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)
    left, right = pair
    with left.lock:
        pulse = Pulse(left.beat)
        assert not right._connection().wait(0.1)
    assert right._connection().wait(5.0)
    reader = threading.Thread(target=left.receive, args=(5.0,))
    reader.start()
    before_s = right.heard_s
    while reader.is_alive() and right.heard_s <= before_s:
        assert right.receive(0.05) is None
    assert right.heard_s > before_s
    right.send(FrameKind.DOORBELL, b"")
    reader.join()
    pulse.close()


def test_a_pulse_outlives_a_lost_connection(pair: tuple[Session, Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)
    left, right = pair
    pulse = Pulse(left.beat)
    right.close()
    with pytest.raises(ConnectionLostError):
        left.receive(5.0)
    near, far = connected()
    left.resume(SocketWire(near, "the right"), 0)
    again = SocketWire(far, "the left")
    assert again.receive(5.0) == Frame(FrameKind.BEAT, b"", 0)
    pulse.close()
    again.close()


def test_a_connection_that_is_cut_is_lost_to_the_thread_that_uses_it(pair: tuple[Session, Session]) -> None:
    """It is in the middle of a payload that nobody reads."""
    lost = threading.Event()

    def send() -> None:
        with pytest.raises(ConnectionLostError):
            pair[0].send(FrameKind.DOORBELL, b"", [memoryview(bytes(1 << 24))])
        lost.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not lost.wait(0.1)
    assert pair[0].connection is not None
    pair[0].connection.cut()
    assert lost.wait(LEASE_S / 2)
    thread.join()
