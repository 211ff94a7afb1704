"""Connections between processes: messages arrive whole, and an end of file is never a hang."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from plesio.core.events import Verdict
from plesio.errors import DeadlineError, ServerLostError, SharedMemoryError
from plesio.protocol.coding import encode
from plesio.protocol.worker import Answer, Beginning, FromWorker, GoOn
from plesio.system import memory
from plesio.system.memory import SharedBlock
from plesio.tensors.arena import PAGE
from plesio.transport.board import Board
from plesio.transport.channel import (
    MESSAGE_BYTES_MAX,
    NUMBERED_HEAD,
    Channel,
    ChannelClosedError,
    channel_pair,
    readable,
)
from plesio.transport.doorbell import Doorbell, MessageReader, framed, write_answer
from plesio.transport.ring import Ring
from support.long_forms import examples
from support.messages import messages


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        with contextlib.suppress(OSError):
            os.close(descriptor)


@given(st.lists(messages(FromWorker), max_size=8), st.lists(st.integers(1, 200), max_size=60))
@settings(max_examples=examples(27), deadline=None)
def test_messages_arrive_however_the_bytes_are_split(sent: list[FromWorker], cuts: list[int]) -> None:
    read, write = os.pipe()
    reader = MessageReader(read)
    data = b"".join(map(framed, sent))
    got: list[FromWorker] = []
    while data:
        cut = cuts.pop() if cuts else 4096
        os.write(write, data[:cut])
        data = data[cut:]
        got += reader.read() or []
    os.close(write)
    assert got == sent
    assert reader.read() is None
    os.close(read)


@given(st.lists(messages(Answer), max_size=8))
@settings(max_examples=examples(27), deadline=None)
def test_answers_are_read_in_the_order_written(sent: list[Answer]) -> None:
    read, write = os.pipe()
    doorbell = Doorbell(-1, read, worker=0)
    assert all(write_answer(write, answer, buffer) for buffer, answer in enumerate(sent))
    for buffer, answer in enumerate(sent):
        assert doorbell.answer(type(answer), 1.0, number=5, version=4) == answer
        assert doorbell.shown(Ring(range(100))).read == buffer
    assert not doorbell.waiting()
    os.close(write)
    os.close(read)


@pytest.mark.parametrize("nbytes", [0, 200, 230, *range(236, 246), 500, 3000])
def test_an_answer_of_several_records_is_one(nbytes: int, pipe: tuple[int, int]) -> None:
    """Also where the last record is full."""
    read, write = pipe
    sent = [
        Beginning(1, False, 2, 3, attachments={"schedules": Raw(encode(bytes(nbytes)))}),
        GoOn(7, True, Verdict.TAKEN),
    ]
    assert all(write_answer(write, answer, 9, number) for number, answer in enumerate(sent, start=1))
    doorbell = Doorbell(-1, read, worker=0)
    assert [doorbell.answer(type(answer), 1.0, number=5, version=4) for answer in sent] == sent
    assert doorbell.place == 9
    assert not doorbell.waiting()


def test_a_missing_answer_is_a_deadline_error_naming_the_contribution(pipe: tuple[int, int]) -> None:
    read, write = pipe
    with pytest.raises(
        DeadlineError, match=r"worker 3 waited for the answer to contribution 5 \(computed from version 4\)"
    ):
        Doorbell(write, read, worker=3).answer(GoOn, 0.05, number=5, version=4)


def test_a_closed_server_raises_at_once(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(write)
    with pytest.raises(ServerLostError, match="the server is gone: worker 3 waited"):
        Doorbell(-1, read, worker=3).answer(GoOn, 5.0, number=5, version=4)


def test_answering_a_closed_worker_is_no_error(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    assert not write_answer(write, GoOn(1, False, Verdict.TAKEN))


def test_answers_stop_whole_when_the_pipe_is_full(pipe: tuple[int, int]) -> None:
    """No answer is written in part."""
    read, write = pipe
    os.set_blocking(write, False)
    written = 0

    def write_on() -> None:
        nonlocal written
        while write_answer(write, GoOn(written, False, Verdict.CANCELLED)):
            written += 1

    with pytest.raises(BlockingIOError):
        write_on()
    assert written > 100
    doorbell = Doorbell(-1, read, worker=0)
    assert [doorbell.answer(GoOn, 1.0, 0, 0).version for _ in range(written)] == list(range(written))
    assert not doorbell.waiting()


def test_messages_to_a_slow_reader_queue_without_blocking() -> None:
    left, right = channel_pair()
    one, other = Channel(left, int, "other"), Channel(right, int, "one")
    assert one.has_room
    for number in range(5000):
        one.send_in_time(number)
    assert not one.has_room
    got: list[int] = []
    while len(got) < 5000:
        while readable(other.fileno(), 0.0):
            got.append(other.receive(1.0)[0])
        one.send_in_time(5000)
    assert got[:5000] == list(range(5000))
    assert one.has_room
    one.send(5001)
    rest = [other.receive(1.0)[0]]
    while rest[-1] != 5001:
        rest.append(other.receive(1.0)[0])
    assert set(got[5000:] + rest[:-1]) == {5000}
    other.close()
    with pytest.raises(ChannelClosedError):
        one.send_in_time(0)
    one.close()


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=2000)), max_size=12))
@settings(max_examples=examples(14), deadline=None)
def test_messages_arrive_in_order(sent: list[int | str]) -> None:
    left, right = channel_pair()
    one, other = Channel(left, int | str, "other"), Channel(right, int | str, "one")
    for message in sent:
        one.send(message)
    assert [other.receive(1.0)[0] for _ in sent] == sent
    one.close()
    with pytest.raises(ChannelClosedError):
        other.receive(1.0)
    other.close()


def test_descriptors_travel_with_a_message() -> None:
    left, right = channel_pair()
    one, other = Channel(left, str, "other"), Channel(right, str, "one")
    block = SharedBlock.create(PAGE, "a test")
    one.send("here", (block.fd,))
    _, descriptors = other.receive(1.0)
    twin = SharedBlock(descriptors[0], PAGE)
    block.memory[11] = 7
    assert int(twin.memory[11]) == 7
    for end in (one, other, block, twin):
        end.close()


def test_a_length_out_of_bounds_is_refused_before_anything_is_allocated() -> None:
    left, right = channel_pair()
    channel = Channel(right, int, "somebody")
    left.send(NUMBERED_HEAD.pack(MESSAGE_BYTES_MAX + 1, 0))
    with pytest.raises(ChannelClosedError, match=r"announced a message of"):
        channel.receive(1.0)
    left.close()
    channel.close()


def test_a_wait_has_a_deadline_that_names_the_peer() -> None:
    left, right = channel_pair()
    channel = Channel(right, int, "worker 2")
    with pytest.raises(DeadlineError, match=r"waited 0\.01 s for its model from worker 2"):
        channel.receive(0.01, "its model")
    left.close()
    channel.close()


WHOLE = NUMBERED_HEAD.pack(300, 0) + msgspec.msgpack.encode("x" * 297)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "cut", [1, NUMBERED_HEAD.size, NUMBERED_HEAD.size + 7], ids=["in the head", "after the head", "in the body"]
)
def test_a_sender_frozen_within_a_message_is_disconnected(cut: int, kind: socket.SocketKind) -> None:
    """The descriptors that came already are closed."""
    left, right = socket.socketpair(socket.AF_UNIX, kind)
    channel = Channel(right, str, "worker 2")
    read, write = os.pipe()
    socket.send_fds(left, [WHOLE[:cut]], [write])
    os.close(write)
    caught: list[Exception] = []
    thread = threading.Thread(target=lambda: caught.append(failure_of(channel)), daemon=True)
    thread.start()
    thread.join(10.0)
    assert [str(one) for one in caught] == ["worker 2 stopped in the middle of a message"]
    assert os.read(read, 1) == b"", "nobody holds the other end any more"
    assert left.recv(1) == b"", "the sender finds the line closed"
    os.close(read)
    left.close()
    channel.close()


def failure_of(channel: Channel[str]) -> Exception:
    with pytest.raises(ChannelClosedError) as caught:
        channel.receive(0.05)
    return caught.value


def test_a_message_in_two_parts_is_reassembled() -> None:
    left, right = channel_pair()
    channel = Channel(right, str, "worker 2")
    left.sendall(WHOLE[:2])
    rest = threading.Timer(0.05, left.sendall, [WHOLE[2:]])
    rest.start()
    assert channel.receive(10.0) == ("x" * 297, [])
    rest.join()
    left.close()
    channel.close()


def test_free_space_is_checked_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda: {"/dev/shm": 1000})
    with pytest.raises(SharedMemoryError, match=r"4\.1 kB of shared memory and /dev/shm has 1\.0 kB left"):
        SharedBlock.create(4096, "this")


def test_a_file_size_limit_is_named_in_the_error() -> None:
    """Shared memory counts as a file. No descriptor stays open."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    descriptors = os.listdir("/proc/self/fd")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(SharedMemoryError, match=r"this needs 40\.0 kB .* files of 10\.0 kB at most; .*ulimit -f"):
            SharedBlock.create(40_000, "this")
        SharedBlock.create(8_000, "this").close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert os.listdir("/proc/self/fd") == descriptors


def test_memory_without_memfd_is_unlinked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without anonymous files, no name stays in the folder while it is in use."""
    monkeypatch.delattr(os, "memfd_create")
    before = set(os.listdir(memory._folder()))
    block = SharedBlock.create(PAGE, "a test")
    block.memory.fill_(3)
    assert set(os.listdir(memory._folder())) == before
    assert any(place.startswith("/") for place in memory.room())
    block.close()


def test_the_board_is_shared_by_all_attached_processes() -> None:
    block = SharedBlock.create(PAGE, "a test")
    twin = SharedBlock(os.dup(block.fd), PAGE)
    mine, theirs = Board(block, 3), Board(twin, 3)
    for board, worker, number in ((mine, 0, 1), (theirs, 2, 1), (theirs, 2, 2)):
        board.folding(worker, number, batches=number, samples=8 * number)
        board.folded(worker, number)
    mine.stopped = 1
    assert (mine.folds, theirs.folds, theirs.stopped) == (3, 3, True)
    assert (mine.folds_of(2), theirs.folds_of(0), mine.data_of(2, 2)) == (2, 1, (2, 16))
    mine.mirror_wanted = 1
    assert theirs.mirror_wanted == 1
    block.close()
    twin.close()
    assert torch.is_tensor(block.memory)
