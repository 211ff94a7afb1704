"""Frames arrive whole however the bytes are split; whatever else comes is refused by one error, and costs no memory."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from plesio.transport import socket_wire as wires
from plesio.transport.certificates import make_certificates
from plesio.transport.limits import PIECE_BYTES, READ_AHEAD_BYTES
from plesio.transport.secure import Credentials, secured
from plesio.transport.socket_wire import CHECKSUM, HEAD, SocketWire
from plesio.transport.wire import ConnectionLostError, DamagedError, Frame, FrameKind, RemoteProtocolError
from support.long_forms import examples


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wires, "LEASE_S", 0.1)


@pytest.fixture
def pair() -> Iterator[tuple[SocketWire, SocketWire]]:
    left, right = socket.socketpair()
    ends = SocketWire(left, "the right"), SocketWire(right, "the left")
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def stranger() -> Iterator[tuple[socket.socket, SocketWire]]:
    left, right = socket.socketpair()
    with left:
        wire = SocketWire(right, "a stranger")
        yield left, wire
        wire.close()


def frame_bytes(kind: int, body: bytes, payload: bytes = b"", number: int = 0, zero: int = 0) -> bytes:
    """A frame as it should be, or (by odd arguments) as a stranger would make it."""
    head = HEAD.pack(kind, zero, number, len(body), 0, len(payload))
    checksum = CHECKSUM.pack(xxh3_64_intdigest(payload)) if payload else b""
    return head + CHECKSUM.pack(xxh3_64_intdigest(head + body)) + body + payload + checksum


SIZES = [0, 1, 100, READ_AHEAD_BYTES - 1, READ_AHEAD_BYTES, 40_000, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_both_sides_may_send_at_once_if_one_is_eager(tls: bool, tmp_path: Path) -> None:
    """Neither reads meanwhile, and each sends more than all buffers hold."""
    sockets: list[socket.socket] = list(socket.socketpair())
    if tls:
        certs = Credentials(make_certificates(tmp_path, ["one"])[0])
        with ThreadPoolExecutor() as pool:
            roles = (sockets[0], "x" * 16, certs, False, "one"), (sockets[1], "x" * 16, certs, True)
            shaken = [pool.submit(secured, *role) for role in roles]
            sockets = [one.result() for one in shaken]
    ends = [SocketWire(one, "the other") for one in sockets]
    ends[0].eager = True
    data = random.Random(0).randbytes(20_000_000)

    def talk(end: SocketWire) -> bool:
        end.send(FrameKind.CHANNEL, b"large", [memoryview(data)])
        frame = end.receive(5.0)
        assert frame is not None
        came = bytearray(frame.payload_bytes)
        end.read_payload([memoryview(came)])
        return came == data and not end.has_input

    with ThreadPoolExecutor() as pool:
        assert [*pool.map(talk, ends)] == [True, True]
    for end in ends:
        end.close()


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_of_any_size_arrives(pair: tuple[SocketWire, SocketWire], size: int) -> None:
    left, right = pair
    payload = random.Random(size).randbytes(size)
    place = bytearray(size)
    sender = threading.Thread(target=left.send, args=(FrameKind.CHANNEL, payload, [memoryview(payload)], 7, 65_537))
    sender.start()
    assert right.receive(5.0) == Frame(FrameKind.CHANNEL, payload, size)
    right.read_payload([memoryview(place)])
    sender.join()
    assert (bytes(place), right.acknowledged, right.number, right.has_input) == (payload, 7, 1, False)
    assert right.receive(0.0) is None


@given(
    frames=st.lists(
        st.tuples(
            st.sampled_from(sorted(wires.WITH_PAYLOAD)), st.binary(max_size=100), st.lists(st.binary(max_size=9000))
        ),
        max_size=5,
    ),
    cuts=st.lists(st.integers(1, 6000), max_size=60),
)
@settings(max_examples=examples(20), deadline=None)
def test_frames_arrive_however_the_bytes_are_split(
    frames: list[tuple[FrameKind, bytes, list[bytes]]], cuts: list[int]
) -> None:
    left, middle = socket.socketpair()
    relay, right = socket.socketpair()
    sender, receiver = SocketWire(left, "the relay"), SocketWire(right, "the relay")
    pieces = [*cuts]

    def pass_on() -> None:
        while data := middle.recv(pieces.pop() if pieces else 65536):
            relay.sendall(data)

    def send() -> None:
        for kind, body, parts in frames:
            sender.send(kind, body, [memoryview(part) for part in parts])
        left.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=pass_on), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    for kind, body, parts in frames:
        places = [bytearray(len(part)) for part in parts]
        assert receiver.receive(5.0) == Frame(kind, body, sum(map(len, parts)))
        receiver.read_payload([memoryview(place) for place in places])
        assert [bytes(place) for place in places] == parts
    assert not receiver.has_input
    for thread in threads:
        thread.join()
    for one in (sender, receiver, middle, relay):
        one.close()


def test_many_parts_are_one_payload(pair: tuple[SocketWire, SocketWire]) -> None:
    """More parts than the kernel takes in one call."""
    left, right = pair
    parts = [bytes([number % 251]) * 3 for number in range(3000)]
    left.send(FrameKind.DOORBELL, b"", [memoryview(part) for part in parts])
    assert right.receive(1.0) == Frame(FrameKind.DOORBELL, b"", 9000)
    right.read_payload([memoryview(place := bytearray(9000))])
    assert place == b"".join(parts)


# Who goes, and who stops


def test_a_connection_that_ends_is_lost(pair: tuple[SocketWire, SocketWire]) -> None:
    left, right = pair
    left.send(FrameKind.BEAT, b"")
    left.close()
    assert right.receive(1.0) == Frame(FrameKind.BEAT, b"", 0)
    with pytest.raises(ConnectionLostError, match="the left is lost: it closed the connection"):
        right.receive(1.0)
    for use in (lambda: right.send(FrameKind.BEAT, b""), lambda: right.receive(1.0)):
        with pytest.raises(ConnectionLostError, match="it was lost before"):
            use()


def test_nothing_comes_in_time(pair: tuple[SocketWire, SocketWire]) -> None:
    assert pair[0].receive(0.05) is None


@pytest.mark.parametrize("kept", [1, 31, 40, 5000])
def test_a_sender_that_stops_in_a_frame_is_lost(
    short_lease: None, stranger: tuple[socket.socket, SocketWire], kept: int
) -> None:

    def read(wire: SocketWire) -> None:
        wire.receive(0.0)
        wire.read_payload([memoryview(bytearray(10_000))])

    sender, wire = stranger
    sender.sendall(frame_bytes(FrameKind.DOORBELL, b"x" * 100, b"y" * 10_000)[:kept])
    with pytest.raises(ConnectionLostError, match="no byte came for"):
        read(wire)


def test_a_receiver_that_stops_is_lost(short_lease: None, pair: tuple[SocketWire, SocketWire]) -> None:
    with pytest.raises(ConnectionLostError, match="it took no byte for"):
        pair[0].send(FrameKind.TENSORS, b"", [memoryview(bytearray(50_000_000))])


# What is no frame


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame_bytes(8, b""), "a frame of kind 8; known: 0 SESSION, 1 CHANNEL, .*7 BEAT"),
        (frame_bytes(FrameKind.BEAT, b"", zero=1), "it speaks another version"),
        (b"GET / HTTP/1.1\r\nHost: 10.0.0.1:4711\r\n\r\n", "a frame of kind 71"),
        (
            HEAD.pack(FrameKind.CHANNEL, 0, 0, 2**32 - 1, 0, 0) + bytes(8),
            "a message of 4294967295 bytes .CHANNEL.; at most",
        ),
        (
            HEAD.pack(FrameKind.ANSWER, 0, 0, 2**20 + 1, 0, 0) + bytes(8),
            "a message of 1048577 bytes .ANSWER.; at most 1048576",
        ),
        (HEAD.pack(FrameKind.DOORBELL, 0, 0, 1, 0, 2**63) + bytes(8), "a payload of 9223372036854775808 bytes"),
        (HEAD.pack(FrameKind.BEAT, 0, 0, 0, 0, 1) + bytes(8), "a payload of 1 bytes .BEAT.; at most 0"),
    ],
)
def test_what_is_no_frame_is_refused(stranger: tuple[socket.socket, SocketWire], data: bytes, why: str) -> None:
    sender, wire = stranger
    sender.sendall(data)
    with pytest.raises(RemoteProtocolError, match=f"a stranger sent .*{why}"):
        wire.receive(1.0)
    sender.settimeout(1.0)
    with contextlib.suppress(ConnectionResetError):
        assert sender.recv(1) == b""  # it was told at once that this is over


def test_a_payload_of_another_size_is_refused_before_it_is_read(pair: tuple[SocketWire, SocketWire]) -> None:
    left, right = pair
    left.send(FrameKind.DOORBELL, b"", [memoryview(b"12345678")])
    right.receive(1.0)
    with pytest.raises(RemoteProtocolError, match="a payload of 8 bytes; 4 were expected"):
        right.read_payload([memoryview(place := bytearray(4))])
    assert place == bytes(4)


def test_a_message_that_is_damaged_loses_the_connection(stranger: tuple[socket.socket, SocketWire]) -> None:
    sender, wire = stranger
    sender.sendall(frame_bytes(FrameKind.BEAT, b"abc")[:-1] + b"d")
    with pytest.raises(DamagedError, match=r"a stranger sent a frame whose checksum is .* damaged on the way"):
        wire.receive(1.0)
    assert issubclass(DamagedError, ConnectionLostError)


def test_a_payload_that_is_damaged_loses_the_connection(stranger: tuple[socket.socket, SocketWire]) -> None:
    sender, wire = stranger
    data = bytearray(frame_bytes(FrameKind.DOORBELL, b"", b"payload"))
    data[-9] ^= 1
    sender.sendall(data)
    wire.receive(1.0)
    with pytest.raises(DamagedError, match=r"a payload whose checksum is .* damaged on the way"):
        wire.read_payload([memoryview(bytearray(7))])


def test_memory_is_taken_as_bytes_come(short_lease: None, stranger: tuple[socket.socket, SocketWire]) -> None:
    """A head announces the largest message that is allowed, and nothing follows."""
    sender, wire = stranger
    sender.sendall(HEAD.pack(FrameKind.CHANNEL, 0, 0, wires.MESSAGE_BYTES_MAX, 0, 0) + bytes(8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConnectionLostError):
        wire.receive(1.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10  # KiB


class ByteByByte(socket.socket):
    """A socket that gives one byte a call."""

    def recvmsg_into(self, buffers: Iterable[Any], room: int = 0, flags: int = 0, /) -> Any:
        return super().recvmsg_into([next(iter(buffers))[:1]], room, flags)


READERS = [socket.socket, ByteByByte]


def read_all(data: bytes, kind: type[socket.socket]) -> str:
    """What a wire makes of these bytes, after which the connection ends."""
    left, right = socket.socketpair()
    wire = SocketWire(kind(fileno=right.detach()), "a stranger")
    try:
        left.sendall(data)
        left.close()
        while True:
            frame = wire.receive(0.0)
            if frame is not None and frame.payload_bytes:
                wire.read_payload([memoryview(bytearray(min(frame.payload_bytes, 1000)))])
    except RemoteProtocolError:
        return "refused"
    except ConnectionLostError:
        return "parsed"
    finally:
        wire.close()


def malformed(rng: random.Random) -> bytes:
    """Bytes like a frame's, but for what is wrong with them. The checksum of half of them is right nevertheless."""
    body, payload = rng.randbytes(rng.choice([0, 3, 40])), rng.randbytes(rng.choice([0, 0, 7, 900]))
    data = bytearray(frame_bytes(rng.randrange(10), body, payload, rng.randrange(3), zero=rng.choice([0] * 9 + [1])))
    match rng.randrange(6):
        case 0:
            data = bytearray(rng.randbytes(rng.randrange(120)))
        case 1:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 2:
            del data[rng.randrange(len(data)) :]
        case 3:
            at, size = rng.choice([(4, 4), (16, 8)])
            data[at : at + size] = rng.choice([1 << 8 * size - 1, rng.randrange(1 << 8 * size), 5]).to_bytes(
                size, "little"
            )
            data[HEAD.size : wires.HEAD_BYTES] = CHECKSUM.pack(xxh3_64_intdigest(data[: HEAD.size] + body))
        case 4:
            begin = rng.randrange(len(data))
            data[begin:begin] = data[begin : begin + rng.randrange(40)]
        case _:
            data *= 2
    return bytes(data)


@given(st.integers(0, 2**32), st.sampled_from(READERS))
@settings(max_examples=examples(60), deadline=None)
def test_malformed_bytes_are_parsed_or_refused(seed: int, kind: type[socket.socket]) -> None:
    read_all(malformed(random.Random(seed)), kind)
