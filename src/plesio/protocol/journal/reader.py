"""Reads a journal, as far as it is whole: one that was cut off or damaged is read up to the last whole record.

Records after damage are not handed out, for a replay needs them all; but those that are whole, which their checksums
tell, bear witness to what is missing: a worker's contributions are numbered.

Whatever the bytes: they are read, reported missing, or answered with a `JournalError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from plesio.core.events import Discard, Fold, Member, Pushed, Reported
from plesio.protocol.journal import records
from plesio.protocol.journal.records import Decision, Ended, JournalError, JournalHead, Record

NO_END = "the journal has no end: its run was killed, or is still going"


class Missing(msgspec.Struct, frozen=True):
    """The journal cannot be read from byte `position` on; at least `contributions`, called off ones included, were in there."""

    position: int
    bytes: int
    contributions: int

    def __str__(self) -> str:
        return f"{self.bytes} bytes from byte {self.position} on, with at least {self.contributions} contributions"


class Journal:
    """A journal as it was when it was opened; iterating reads its records in order, again each time. The first after the head
    begins at byte `start`."""

    def __init__(self, path: Path, head: JournalHead, start: int, size: int) -> None:
        self.path = path
        self.head = head
        self.start = start
        self._size = size

    def __iter__(self) -> Iterator[Record]:
        return (record for _, record in self.placed())

    def decisions(self) -> Iterator[Decision]:
        return (record for record in self if isinstance(record, Decision))

    def folds(self) -> Iterator[Fold]:
        return (fold for one in self.decisions() for fold in one.folds)

    def placed(self, after: int = 0) -> Iterator[tuple[int, Record]]:
        """Records, and where each ends; `after`: where one ended."""
        position = max(self.start, after)
        with self.path.open("rb") as file:
            while (found := self._record_at(file, position)) is not None:
                yield found
                position, _ = found

    @cached_property
    def missing(self) -> Missing | None:
        """What cannot be read; None if nothing. To know it, the whole file is read."""
        position, _ = self._last
        if position == self._size:
            return None
        contributions = _contributions(chain(self, self._beyond(position))) - _contributions(self)
        return Missing(position, self._size - position, contributions)

    @property
    def complete(self) -> bool:
        """Whether it is whole and ends with the end of the run. To know it, the whole file is read."""
        position, record = self._last
        return position == self._size and isinstance(record, Ended)

    @cached_property
    def _last(self) -> tuple[int, Record | None]:
        last = deque(self.placed(), maxlen=1)
        return last[0] if last else (self.start, None)

    def _beyond(self, position: int) -> Iterator[Record]:
        with self.path.open("rb") as file:
            while position < self._size:
                found = self._record_at(file, position)
                position = position + 1 if found is None else found[0]
                if found is not None:
                    yield found[1]

    def _record_at(self, file: BinaryIO, position: int) -> tuple[int, Record] | None:
        body = _body_at(file, position, self._size)
        if body is None:
            return None
        try:
            return position + records.FRAME.size + len(body), records.decode(body)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            return None


def _contributions(known: Iterable[Record]) -> int:
    """How many contributions these know of: those numbered, and those folded unasked."""
    numbers: dict[tuple[int, int], int] = {}
    reported = 0
    for record in known:
        if not isinstance(record, Decision):
            continue
        if isinstance(record.event, Reported):
            reported += record.event.versions
        members = (member for fold in record.folds for member in fold.members)
        for one in (record.event, *record.effects, *members):
            if isinstance(one, Pushed | Discard | Member):
                key = (one.worker, one.incarnation)
                numbers[key] = max(one.number, numbers.get(key, 0))
    return sum(numbers.values()) + reported


def read_journal(path: str | Path) -> Journal:
    """Open the journal at `path`, a file or the run folder that holds it, and read its head.

    >>> import tempfile
    >>> from plesio.protocol.journal.writer import JournalWriter
    >>> path = Path(tempfile.mkdtemp(), "journal.bin")
    >>> JournalWriter(path, JournalHead(strategy="sync_sgd", workers=4)).close()
    >>> journal = read_journal(path)
    >>> journal.head.strategy, list(journal), journal.missing, journal.complete
    ('sync_sgd', [], None, False)
    """
    path = Path(path)
    if path.is_dir():
        path = path / records.FILE_NAME
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            magic = file.read(len(records.MAGIC))
            body = _body_at(file, len(records.MAGIC), size) if magic == records.MAGIC else None
    except OSError as error:
        raise JournalError(
            f"the journal {path} cannot be read: {error.strerror}; give a run's folder (runs without a server, "
            "such as hogwild's and allreduce's, keep none)"
        ) from error
    if not magic:
        raise JournalError(f"the journal {path} is empty: its run was over before it began; there is nothing to read")
    if not records.MAGIC.startswith(magic):
        raise JournalError(f"{path} is no journal: it begins with {magic!r}, a journal with {records.MAGIC!r}")
    try:
        if body is None:
            raise ValueError
        head = records.decode_head(body)
    except JournalError as error:
        raise JournalError(f"the journal {path} cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError, RecursionError):
        raise JournalError(f"the head of the journal {path}, of {size} bytes, is cut off or damaged") from None
    return Journal(path, head, len(records.MAGIC) + records.FRAME.size + len(body), size)


def _body_at(file: BinaryIO, position: int, size: int) -> bytes | None:
    """The body of the record that begins at `position`, if a whole one does."""
    file.seek(position)
    header = file.read(records.FRAME.size)
    if len(header) < records.FRAME.size:
        return None
    length, _ = records.FRAME.unpack(header)
    if not 0 < length <= min(records.RECORD_BYTES_MAX, size - position - records.FRAME.size):
        return None
    body = file.read(length)
    return body if records.frame_header(body, position) == header else None
