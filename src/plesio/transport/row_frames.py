"""What goes between a table server of another host and its proxy, with the rows that belong to it: `TO_FAR` and `FROM_FAR`.

Both ends ask here. Rows travel from places to places (`plesio.transport.row_slots`), and are sent again from there. A worker
writes into a place when it wants rows for the contribution after the next. By then rows of the next have come, and with them the
word that all before has. A file goes in pieces, before the message that it belongs to.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

from msgspec import ValidationError, convert

from plesio.core.events import Fold, FoldRows, Hold
from plesio.protocol import table_server as messages
from plesio.protocol.coding import ProtocolError, cut, encode
from plesio.protocol.launcher import Failed
from plesio.system.memory import anonymous_file
from plesio.transport.routes import PARTING, Dialogue, Route, Routes, Spans
from plesio.transport.row_payloads import RowPayloads
from plesio.transport.row_slots import RowSlots, check_room
from plesio.transport.wire import FrameKind


class RowDialogue(Dialogue):
    """What one side has said and heard; both know the same of it. There are rows after `begin`."""

    def __init__(self) -> None:
        super().__init__()
        self._slots: RowSlots | None = None
        self._rows: list[RowPayloads] = []  # by reader
        self._unserved: deque[messages.Lay] = deque()
        self._asked: deque[str] = deque()
        self._piece = bytearray()
        self._file: BinaryIO | None = None

    def begin(self, slots: RowSlots) -> None:
        """These are the places."""
        self._slots, self._rows = slots, [RowPayloads((slots,), reader) for reader in range(slots.readers)]

    @property
    def awaited(self) -> str:
        """What was asked first of all that is not answered."""
        return self._asked[0] if self._asked else ""

    def frames(
        self,
        routes: Routes[RowDialogue],
        message: messages.ToFarServer | messages.FromFarServer,
        files: Sequence[int] = (),
    ) -> Iterator[tuple[FrameKind, bytes, Spans]]:
        """What this side sends to say this: first the pieces of the files that belong to it."""
        for fd in files:
            whole = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
            for at in range(0, len(whole), messages.PIECE_BYTES_MAX):
                piece = whole[at : at + messages.PIECE_BYTES_MAX]
                yield FrameKind.CHANNEL, encode(messages.Piece(len(piece))), [piece]
        kind, payload = routes.told(self, message)
        yield kind, encode(message), payload

    def take_files(self) -> list[int]:
        """The descriptor of the file whose pieces came, if any did."""
        if self._file is None:
            return []
        with self._file as file:
            file.flush()
            self._file = None
            return [os.dup(file.fileno())]

    def of(self, reader: int) -> RowPayloads:
        """Those of one reader."""
        if not 0 <= reader < len(self._rows):
            raise ProtocolError(f"it spoke of reader {reader} of {len(self._rows)}")
        return self._rows[reader]

    def are_all(self, of_tables: Mapping[str, object]) -> bool:
        """Raise `ProtocolError` unless it speaks of each table."""
        names = sorted(spec.name for spec in self._slots.specs) if self._slots is not None else []
        if sorted(of_tables) != names:
            raise ProtocolError(f"it spoke of the tables {cut(sorted(of_tables))}; there are {names}")
        return True

    def may_answer(self, answered: messages.Answered) -> bool:
        if self._asked and not answered.error:
            try:
                convert(answered.value, messages.RETURNS[self.awaited])
            except ValidationError as error:
                raise ProtocolError(f"its answer to {self.awaited} is none: {error}") from None
        return bool(self._asked)

    def keys(self, lay: messages.Lay) -> Spans:
        rows, wanted = self.of(lay.reader), lay.request.wanted
        specs = self._slots.specs if self._slots is not None else ()
        if len(wanted) != len(specs):
            raise ProtocolError(f"it wants rows of {len(wanted)} tables, and there are {len(specs)}")
        for spec, (at, count) in zip(specs, wanted, strict=True):
            check_room(spec, at, count)
        return rows.keys(lay.request)

    def values(self, _: messages.ValuesServed) -> Spans:
        return self.of(self._unserved[0].reader).values(self._unserved[0].request)

    def gradients(self, step: FoldRows | Hold | Fold) -> Spans:
        """Of all rows that were served for it, with their flags; of a fold, those of each member that was not held."""
        if not isinstance(step, Fold):
            return self.of(step.worker).gradients(step.number)
        members = step.members if step.held is None else ()
        return [view for one in members for view in self.of(one.worker).gradients(one.number)]

    def piece(self, piece: messages.Piece) -> Spans:
        self._piece = bytearray(piece.nbytes)
        return [memoryview(self._piece)]

    def laid(self, lay: messages.Lay) -> None:
        self.of(lay.reader).asked(lay.request)
        self._unserved.append(lay)

    def asked(self, ask: messages.Ask) -> None:
        self._asked.append(ask.what)
        for one in self._rows if ask.what in ("begin_anew", "begin_from") else ():
            one.forget()

    def pieced(self, _: messages.Piece) -> None:
        self._file = self._file or open(anonymous_file(0, "the rows of tables"), "wb")  # noqa: SIM115
        self._file.write(self._piece)


R, Say = RowDialogue, Route[RowDialogue]
TO_FAR = Routes(
    Say(messages.Begin, FrameKind.CHANNEL),
    Say(messages.Lay, FrameKind.CHANNEL, spans=R.keys, then=R.laid),
    *(Say(step, FrameKind.CHANNEL, spans=R.gradients) for step in (FoldRows, Hold, Fold)),
    Say(messages.Reading, FrameKind.CHANNEL),
    Say(
        messages.Vacated,
        FrameKind.CHANNEL,
        lambda t, one: t.of(one.reader),
        then=lambda t, one: t.of(one.reader).forget(),
    ),
    Say(messages.Piece, FrameKind.CHANNEL, spans=R.piece, then=R.pieced),
    Say(messages.Ask, FrameKind.CHANNEL, lambda t, one: one.what in messages.RETURNS, then=R.asked),
)
FROM_FAR = Routes(
    Say(
        messages.ValuesServed, FrameKind.CHANNEL, lambda t, _: t._unserved, R.values, lambda t, _: t._unserved.popleft()
    ),
    Say(messages.Stands, FrameKind.CHANNEL, lambda t, one: t.are_all(one.summaries)),
    Say(messages.Piece, FrameKind.CHANNEL, lambda t, _: t._asked, R.piece, R.pieced),
    Say(messages.Answered, FrameKind.CHANNEL, R.may_answer, then=lambda t, _: t._asked.popleft()),
    Say(Failed, FrameKind.LAUNCHER),
    *PARTING,
)
