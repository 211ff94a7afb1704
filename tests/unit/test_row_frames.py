"""What goes with a message between a table server and its proxy; what cannot be is refused before anything is read."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from plesio.core.events import Fold, FoldRows, Hold, Member
from plesio.errors import ConfigurationError
from plesio.protocol.coding import ProtocolError, encode
from plesio.protocol.rows import RowsRequest
from plesio.protocol.table_server import PIECE_BYTES_MAX, Answered, Ask, Lay, Piece, Vacated, ValuesServed
from plesio.tables.spec import TableSpec
from plesio.transport import row_frames
from plesio.transport.row_frames import FROM_FAR, TO_FAR, RowDialogue
from plesio.transport.row_slots import MOST, RowSlots
from plesio.transport.wire import Frame, FrameKind

SPECS = TableSpec("ids", 2), TableSpec("words", 3)


def lay(reader: int, number: int, *wanted: tuple[int, int]) -> Lay:
    return Lay(reader, RowsRequest(number, wanted), 0.0)


class Side:
    """One side with places of its own."""

    def __init__(self) -> None:
        self.slots = RowSlots.create(SPECS, readers=2)
        self.dialogue = RowDialogue()
        self.dialogue.begin(self.slots)

    def to(self, other: Side, message: Any, files: tuple[int, ...] = ()) -> None:
        """Say it, with all that belongs to it."""
        routes = FROM_FAR if type(message) in (ValuesServed, Answered) else TO_FAR
        for kind, body, payload in self.dialogue.frames(routes, message, files):
            data = b"".join(payload)
            said = routes.decoded(Frame(kind, body, len(data)))
            routes.into(other.dialogue, said, len(data))
            into = routes.into(other.dialogue, said, len(data))  # a connection that is cut has it come twice
            for view in into:
                view.cast("B")[:], data = data[: view.nbytes], data[view.nbytes :]
            routes.note(other.dialogue, said)

    def payloads(self, message: Any) -> list[Any]:
        """What goes with it."""
        return [payload for _, _, payload in self.dialogue.frames(TO_FAR, message)]


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
        there.to(here, ValuesServed())
    assert here.slots.of(1, 5, 0).values[:5].tolist() == np.arange(10).reshape(5, 2).tolist()
    member = Member(1, 1, 5, 0, 1.0, 1, 1)
    for gradient, step in enumerate((FoldRows(1, 5), Hold(1, 5, 0.5), Fold(1, (member,), 1.0))):
        here.slots.of(1, 5, 0).gradients[:5], here.slots.of(1, 5, 0).touched[:5] = gradient + 1, gradient + 1
        here.to(there, step)
        laid = there.slots.of(1, 5, 0)
        assert (laid.gradients[:5] == gradient + 1).all()
        assert (laid.touched[:6].tolist(), laid.gradients[5].tolist()) == ([gradient + 1] * 5 + [0], [0, 0])
    assert here.payloads(Fold(1, (member,), 1.0, held=1.0)) == [[]]


@pytest.mark.parametrize("over", [Vacated(1), Ask("begin_anew", ()), lay(1, 7, (0, 0), (0, 0))], ids=str)
def test_what_nothing_comes_of_is_forgotten(sides: tuple[Side, Side], over: Any) -> None:
    here, there = sides
    here.to(there, lay(1, 5, (0, 2), (0, 0)))
    here.to(there, over)
    assert here.payloads(FoldRows(1, 5)) == [[]]
    assert not TO_FAR.into(there.dialogue, FoldRows(1, 5), 0)


def test_a_file_goes_in_pieces(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_frames.messages, "PIECE_BYTES_MAX", 7)
    here, there = sides
    read, data = os.memfd_create("a file"), os.urandom(40)
    os.write(read, data)
    there.to(here, Ask("hand_over", ()))
    here.to(there, Answered(), (read,))
    (came,) = there.dialogue.take_files()
    assert os.pread(came, 100, 0) == data
    assert not there.dialogue.take_files()


def test_what_cannot_be_is_refused() -> None:
    side = Side()
    for routes, message, nbytes, error, words in (
        (TO_FAR, lay(2, 1, (0, 1), (0, 0)), 8, ProtocolError, "reader 2 of 2"),
        (TO_FAR, lay(-1, 1, (0, 1), (0, 0)), 8, ProtocolError, "reader -1 of 2"),
        (TO_FAR, lay(0, 1, (0, 1)), 8, ProtocolError, "rows of 1 tables, and there are 2"),
        (TO_FAR, lay(0, 1, (0, MOST + 1), (0, 0)), 8, ConfigurationError, "has room for"),
        (TO_FAR, lay(0, 1, (0, 1), (0, 0)), 16, ProtocolError, "16 bytes with Lay; 8 were expected"),
        (TO_FAR, FoldRows(0, 1), 9, ProtocolError, "9 bytes with FoldRows; 0 were expected"),
        (TO_FAR, FoldRows(7, 1), 0, ProtocolError, "reader 7 of 2"),
        (TO_FAR, Ask("restore", ()), 0, ProtocolError, "Ask out of turn"),
        (TO_FAR, Piece(7), 8, ProtocolError, "8 bytes with Piece; 7 were expected"),
        (TO_FAR, Piece(PIECE_BYTES_MAX + 1), 0, ProtocolError, "no message"),
        (FROM_FAR, ValuesServed(), 0, ProtocolError, "Served out of turn"),
        (FROM_FAR, Piece(7), 7, ProtocolError, "Piece out of turn"),
        (FROM_FAR, Answered(), 0, ProtocolError, "Answered out of turn"),
    ):
        with pytest.raises(error, match=words):
            routes.into(side.dialogue, routes.decoded(Frame(FrameKind.CHANNEL, encode(message), nbytes)), nbytes)
    with pytest.raises(ProtocolError, match="reader 0 of 0"):
        TO_FAR.into(RowDialogue(), lay(0, 1), 0)
