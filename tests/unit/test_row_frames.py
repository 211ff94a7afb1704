"""What goes with a message between a deputy and its table server; what cannot be is refused before anything is read."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from plesio.core.events import Fold, FoldRows, Hold, Member
from plesio.errors import ConfigurationError
from plesio.protocol.coding import ProtocolError
from plesio.protocol.table_server import PIECE_BYTES_MAX, Answered, Ask, Lay, Piece, Served, Vacated
from plesio.protocol.worker import RowsRequest
from plesio.tables.spec import TableSpec
from plesio.transport import row_frames
from plesio.transport.row_frames import RowFrames
from plesio.transport.row_slots import MOST, RowSlots

SPECS = TableSpec("ids", 2), TableSpec("words", 3)


def lay(reader: int, number: int, *wanted: tuple[int, int]) -> Lay:
    return Lay(reader, RowsRequest(number, wanted), 0.0)


class Side:
    """One side with places of its own."""

    def __init__(self) -> None:
        self.slots = RowSlots.create(SPECS, readers=2)
        self.frames = RowFrames()
        self.frames.begin(self.slots)

    def to(self, other: Side, message: Any, files: tuple[int, ...] = ()) -> None:
        """Say it, with all that belongs to it."""
        for body, payload in self.frames.frames(message, files):
            said = message if not body.endswith(b"Piece") else Piece()
            data = b"".join(payload)
            other.frames.place(said, len(data))
            into = other.frames.place(said, len(data))  # a connection that is cut has it come twice
            for view in into:
                view.cast("B")[:], data = data[: view.nbytes], data[view.nbytes :]
            other.frames.note(said)


@pytest.fixture
def sides() -> tuple[Side, Side]:
    return Side(), Side()


def test_keys_go_there_values_come_back_and_gradients_of_all_passes_go_with_the_step(sides: tuple[Side, Side]) -> None:
    here, there = sides
    for begin, count in ((0, 2), (2, 3)):
        here.slots.of(1, 5, 0).keys[begin : begin + count] = np.arange(count) + 10 * begin
        here.to(there, lay(1, 5, (begin, count), (0, 0)))
    here.to(there, lay(0, 5, (0, 0), (0, 4)))
    assert there.slots.of(1, 5, 0).keys[:5].tolist() == [0, 1, 20, 21, 22]
    there.slots.of(1, 5, 0).values[:5] = np.arange(10).reshape(5, 2)
    for _ in range(3):
        there.to(here, Served())
    assert here.slots.of(1, 5, 0).values[:5].tolist() == np.arange(10).reshape(5, 2).tolist()
    member = Member(1, 1, 5, 0, 1.0, 1, 1)
    for gradient, step in enumerate((FoldRows(1, 5), Hold(1, 5, 0.5), Fold(1, (member,), 1.0))):
        here.slots.of(1, 5, 0).gradients[:5], here.slots.of(1, 5, 0).touched[:5] = gradient + 1, gradient + 1
        here.to(there, step)
        laid = there.slots.of(1, 5, 0)
        assert (laid.gradients[:5] == gradient + 1).all()
        assert (laid.touched[:6].tolist(), laid.gradients[5].tolist()) == ([gradient + 1] * 5 + [0], [0, 0])
    assert [payload for _, payload in here.frames.frames(Fold(1, (member,), 1.0, held=1.0))] == [[]]


@pytest.mark.parametrize("over", [Vacated(1), Ask("begin_anew", ()), lay(1, 7, (0, 0), (0, 0))], ids=str)
def test_what_nothing_comes_of_is_forgotten(sides: tuple[Side, Side], over: Any) -> None:
    here, there = sides
    here.to(there, lay(1, 5, (0, 2), (0, 0)))
    here.to(there, over)
    assert [payload for _, payload in here.frames.frames(FoldRows(1, 5))] == [[]]
    there.frames.place(FoldRows(1, 5), 0)


def test_a_file_goes_in_pieces(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_frames.messages, "PIECE_BYTES_MAX", 7)
    here, there = sides
    read, data = os.memfd_create("a file"), os.urandom(40)
    os.write(read, data)
    here.to(there, Answered(), (read,))
    (came,) = there.frames.take_files()
    assert os.pread(came, 100, 0) == data
    assert not there.frames.take_files()


def test_what_cannot_be_is_refused() -> None:
    side = Side()
    for message, nbytes, error, words in (
        (lay(2, 1, (0, 1), (0, 0)), 8, ProtocolError, "reader 2 of 2"),
        (lay(-1, 1, (0, 1), (0, 0)), 8, ProtocolError, "reader -1 of 2"),
        (lay(0, 1, (0, 1)), 8, ProtocolError, "rows of 1 tables, and there are 2"),
        (lay(0, 1, (0, MOST + 1), (0, 0)), 8, ConfigurationError, "has room for"),
        (lay(0, 1, (0, 1), (0, 0)), 16, ProtocolError, "16 bytes with Lay; 8 were expected"),
        (FoldRows(0, 1), 9, ProtocolError, "9 bytes with FoldRows; 0 were expected"),
        (FoldRows(7, 1), 0, ProtocolError, "reader 7 of 2"),
        (Served(), 0, ProtocolError, "rows that nobody wants"),
        (Piece(), PIECE_BYTES_MAX + 1, ProtocolError, "bytes with Piece; 0 were expected"),
        (Answered(), 1, ProtocolError, "1 bytes with Answered; 0 were expected"),
    ):
        with pytest.raises(error, match=words):
            side.frames.place(message, nbytes)
    with pytest.raises(ProtocolError, match="reader 0 of 0"):
        RowFrames().place(lay(0, 1), 0)
