"""The frames between a deputy and its table server on another host: a message each, with the rows that belong to it.

| message        | with                                                                                           |
| -------------- | ---------------------------------------------------------------------------------------------- |
| Lay            | the keys of what is wanted                                                                     |
| Served         | their values                                                                                   |
| FoldRows, Hold | the gradients in that contribution, of all rows that were served for it, and their flags       |
| Fold           | the same of each member that was not held                                                      |
| Piece          | part of a file, which belongs to the message after it                                          |

Rows travel from places to places (`plesio.transport.row_slots`), and are sent again from there. A worker writes into a place when
it wants rows for the contribution after the next. By then rows of the next have come, and with them the word that all before has.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from plesio.core.events import Fold, FoldRows, Hold
from plesio.host.memory import anonymous_file
from plesio.protocol import table_server as messages
from plesio.protocol.coding import ProtocolError, encode
from plesio.transport.row_payloads import RowPayloads
from plesio.transport.row_slots import RowSlots, check_room

Said = messages.ToFarServer | messages.FromFarServer


class RowFrames:
    """What one side has said and heard; both know the same of it. There are rows after `begin`."""

    def __init__(self) -> None:
        self._slots: RowSlots | None = None
        self._rows: list[RowPayloads] = []  # by reader
        self._unserved: deque[messages.Lay] = deque()
        self._piece = bytearray()
        self._file: BinaryIO | None = None

    def begin(self, slots: RowSlots) -> None:
        """These are the places."""
        self._slots, self._rows = slots, [RowPayloads((slots,), reader) for reader in range(slots.readers)]

    def frames(self, message: Said, files: Sequence[int] = ()) -> Iterator[tuple[bytes, list[memoryview]]]:
        """A message's body and payload, after pieces of the files that belong to it."""
        for fd in files:
            whole = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
            for at in range(0, len(whole), messages.PIECE_BYTES_MAX):
                yield encode(messages.Piece()), [whole[at : at + messages.PIECE_BYTES_MAX]]
        payload = self._of(message)
        self.note(message)
        yield encode(message), payload

    def place(self, message: Said, nbytes: int) -> list[memoryview]:
        """Where the payload of so many bytes belongs that comes with a message; it may come twice. Raises `ProtocolError` for
        one that cannot come now, or with so many bytes."""
        if isinstance(message, messages.Piece) and nbytes <= messages.PIECE_BYTES_MAX:
            self._piece = bytearray(nbytes)
        into = self._of(message)
        if (expected := sum(view.nbytes for view in into)) != nbytes:
            raise ProtocolError(f"it sent {nbytes} bytes with {type(message).__name__}; {expected} were expected")
        return into

    def note(self, message: Said) -> messages.Lay | None:
        """It is said, or has come with all that belongs to it. If rows were served, those that were wanted."""
        match message:
            case messages.Lay(reader, request):
                self._rows[reader].asked(request)
                self._unserved.append(message)
            case messages.Served():
                return self._unserved.popleft()
            case messages.Vacated(reader):
                self._of_reader(reader).forget()
            case messages.Ask("begin_anew" | "begin_from"):
                for one in self._rows:
                    one.forget()
            case messages.Piece():
                self._file = self._file or open(anonymous_file(0, "the rows of tables"), "wb")  # noqa: SIM115
                self._file.write(self._piece)
        return None

    def take_files(self) -> list[int]:
        """The descriptor of the file whose pieces came, if any did."""
        if self._file is None:
            return []
        with self._file as file:
            file.flush()
            self._file = None
            return [os.dup(file.fileno())]

    def _of(self, message: Said) -> list[memoryview]:
        match message:
            case messages.Lay(reader, request):
                self._check(reader, request.wanted)
                return self._rows[reader].keys(request)
            case messages.Served():
                if not self._unserved:
                    raise ProtocolError("it sent rows that nobody wants")
                return self._rows[self._unserved[0].reader].values(self._unserved[0].request)
            case FoldRows(worker, number) | Hold(worker, number):
                return self._of_reader(worker).gradients(number)
            case Fold(members=members, held=None):
                return [view for one in members for view in self._of_reader(one.worker).gradients(one.number)]
            case messages.Piece():
                return [memoryview(self._piece)]
        return []

    def _of_reader(self, reader: int) -> RowPayloads:
        if not 0 <= reader < len(self._rows):
            raise ProtocolError(f"it spoke of reader {reader} of {len(self._rows)}")
        return self._rows[reader]

    def _check(self, reader: int, wanted: Sequence[tuple[int, int]]) -> None:
        self._of_reader(reader)
        specs = self._slots.specs if self._slots is not None else ()
        if len(wanted) != len(specs):
            raise ProtocolError(f"it wants rows of {len(wanted)} tables, and there are {len(specs)}")
        for spec, (at, count) in zip(specs, wanted, strict=True):
            check_room(spec, at, count)
