"""What a table server of another host may say: all else ends it, before anybody believes it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from plesio.launch.local.table_proxy import TableProxy
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol import remote
from plesio.protocol import table_server as messages
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.launcher import Failed
from plesio.protocol.rows import RowsRequest
from plesio.tables.file import in_memory
from plesio.tables.spec import TableSpec
from plesio.transport.channel import Channel, channel_pair
from plesio.transport.row_slots import RowSlots
from plesio.transport.session import Session
from plesio.transport.socket_wire import SocketWire
from plesio.transport.wire import FrameKind

SPEC = TableSpec("ids", 2)


class Between:
    """A proxy in a thread, and all ends of its lines."""

    def __init__(self) -> None:
        lines = [channel_pair(), channel_pair()]
        self.launcher: Channel[Any] = Channel(lines[0][0], remote.FromProxy, "the proxy")
        self.head: Channel[Any] = Channel(lines[1][0], messages.FromTableServer, "table server 1")
        near, far = socket.socketpair()
        self.far = Session(SocketWire(far, "the head"), "the head")
        to_launcher: Channel[Any] = Channel(lines[0][1], remote.ToProxy, "the launcher")
        job: Any = None
        session, line = Session(SocketWire(near, "far"), "far"), lines[1][1]
        self._proxy = TableProxy(job, 1, to_launcher, [line.detach()], session)
        self._ends: tuple[Any, ...] = (to_launcher, session, self._proxy._head)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.slots, self.bell = RowSlots.create([SPEC], 2), os.eventfd(0)
        self.head.send(messages.Bells(), [self.bell] * 2)
        self.head.send(messages.Begin((SPEC,), 2, True, 1, 3), [self.slots.fd])
        assert self.heard()[0] == messages.Stands({}, RowServer())
        assert isinstance(self.came(), messages.Begin)

    def _run(self) -> None:
        try:
            self._proxy.run()
        except BaseException as error:
            self.error = error

    def heard(self) -> tuple[Any, list[int]]:
        """What the server hears next."""
        return self.head.receive(10.0)

    def came(self) -> Any:
        """The next message at the table server."""
        frame = self.far.receive(10.0)
        assert frame is not None
        if frame.payload_bytes:
            self.far.read_payload([memoryview(bytearray(frame.payload_bytes))])
        return messages_of(frame.body)

    def ended(self) -> BaseException | None:
        self._thread.join(10.0)
        return self.error

    def close(self) -> None:
        self.launcher.close()
        self.head.close()
        self.far.close()
        self._thread.join()
        for one in self._ends:
            one.close()
        os.close(self.bell)


messages_of = decoder_of(messages.ToFarServer)


@pytest.fixture
def between() -> Iterator[Between]:
    one = Between()
    yield one
    one.close()


STANDS = messages.Stands({"ids": RowsSummary(rows=3)}, RowServer(rows=3))


@pytest.mark.parametrize(
    "message",
    [
        messages.ValuesServed(),
        messages.Answered(1),
        messages.Piece(0),
        messages.Stands({"other": RowsSummary(rows=1)}, RowServer()),
        messages.Lay(0, RowsRequest(1, ((0, 1),)), 0.0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_nobody_asked_for_ends_it(between: Between, message: Any) -> None:
    between.far.send(FrameKind.CHANNEL, encode(message))
    assert isinstance(between.ended(), ProtocolError)


@pytest.mark.parametrize("value", [None, "7", 7.5, {"ids": 1}], ids=str)
def test_an_answer_of_another_type_ends_it(between: Between, value: Any) -> None:
    between.head.send(messages.Ask("checksum", ()))
    assert between.came() == messages.Ask("checksum", ())
    between.far.send(FrameKind.CHANNEL, encode(messages.Answered(value)))
    assert "its answer to checksum is none" in str(between.ended())


def test_rows_of_other_tables_end_it(between: Between) -> None:
    between.head.send(messages.Ask("hand_over", ()))
    assert between.came() == messages.Ask("hand_over", ())
    data = os.pread(in_memory({"other": {}}), 1000, 0)
    between.far.send(FrameKind.CHANNEL, encode(messages.Piece(len(data))), [memoryview(data)])
    between.far.send(FrameKind.CHANNEL, encode(messages.Answered()))
    assert isinstance(between.ended(), ProtocolError)


def test_a_file_that_is_none_is_an_error_of_the_checkpoint(between: Between) -> None:
    between.head.send(messages.Ask("write", ("/nowhere", 0, -1)))
    assert between.came() == messages.Ask("hand_over", (-1,))
    between.far.send(FrameKind.CHANNEL, encode(messages.Piece(9)), [memoryview(b"no tables")])
    between.far.send(FrameKind.CHANNEL, encode(messages.Answered()))
    assert between.heard()[0].error


def test_a_checkpoint_that_cannot_be_read_is_answered_here(between: Between) -> None:
    between.head.send(messages.Ask("restore", ("/nowhere", ("table-0.safetensors",), 3)))
    assert "nowhere" in between.heard()[0].error


def test_how_rows_stand_is_passed_on_and_waits_are_of_this_hosts_clock(between: Between) -> None:
    between.far.send(FrameKind.CHANNEL, encode(messages.Stands(STANDS.summaries, RowServer(rows=3, waited_s=1e9))))
    assert between.heard()[0] == STANDS


def test_what_it_raised_is_told(between: Between) -> None:
    failed = Failed("ValueError", "no reason", "a traceback", False)
    between.far.send(FrameKind.LAUNCHER, encode(failed))
    between.far.send(FrameKind.SESSION, encode(remote.Parted()))
    assert between.launcher.receive(10.0)[0] == failed
    assert between.ended() is None
