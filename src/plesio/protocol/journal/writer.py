"""Writes a journal: records gather in memory and go out together, one write a flush.

What survives:

| what dies                     | what may be lost                                                                |
| ----------------------------- | ------------------------------------------------------------------------------- |
| the process (SIGKILL)         | what was not flushed: at most the records since the flush before, of `FLUSH_S`  |
| the machine                   | also what the system had not brought to disk; nothing before `flush(durable)`   |

It writes at the place where a record belongs, so that who goes on from a dead process may write it again.

The writer has no clock: it flushes when the time of an event says so, and its owner flushes when none came for a while.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from plesio.protocol.journal import records
from plesio.protocol.journal.reader import read_journal
from plesio.protocol.journal.records import (
    HEAD,
    MAGIC,
    Decision,
    Ended,
    JournalError,
    JournalHead,
    Noted,
    Record,
    Resumed,
)

FLUSH_S = 0.1
Once = Callable[[Callable[[], tuple[int, str]]], Sequence[Any]]


class JournalWriter:
    """A new journal, of a run that `head` describes. Times are in seconds, of the clock that the sequencer is told.

    Args:
        file: the path of a file that does not exist, or the descriptor of an empty one, which the writer then owns.
        head: what the run is.

    Attributes:
        position: the bytes so far, those not flushed included: where the next record will begin.
        copied: told of each record's bytes, too.

    Raises:
        JournalError: it cannot be made or, from any method, not be written; what was not written is kept, for the next
            flush to try again.

    >>> import tempfile
    >>> from plesio.core.events import Joined
    >>> path = Path(tempfile.mkdtemp(), "journal.bin")
    >>> writer = JournalWriter(path, JournalHead(strategy="async_sgd", workers=1))
    >>> writer.keep(Decision(12.5, Joined(worker=0, incarnation=1)))
    >>> writer.end(0, "9c1185a5", now_s=13.0)
    >>> [type(record).__name__ for record in read_journal(path)]
    ['Decision', 'Ended']
    """

    _descriptor: int
    copied: Callable[[bytes], object] | None = None

    def __init__(self, file: int | str | Path, head: JournalHead) -> None:
        self._open(file, os.O_CREAT | os.O_EXCL, len(MAGIC))
        self._unwritten += MAGIC
        self._append(HEAD + records.encode(head))
        self.flush()

    @classmethod
    def resume(cls, path: str | Path) -> JournalWriter:
        """Go on with the journal at `path` from after its last whole record; what lies beyond is cut off."""
        journal = read_journal(path)
        position = max((end for end, _ in journal.placed()), default=journal.start)
        writer = cls.__new__(cls)
        writer._open(journal.path, 0, position)
        os.ftruncate(writer._descriptor, position)
        return writer

    @classmethod
    def begun(cls, descriptor: int, path: str = "", once: Once = operator.call) -> JournalWriter:
        """Go on with the journal that another process of this host began at `path` and detached. `once`: does what depends on
        more than this process knows, and gives the result."""
        writer = cls.__new__(cls)
        writer._open(descriptor, 0, os.fstat(descriptor).st_size)
        writer._once = once
        writer._name = path or writer._name
        return writer

    def detach(self) -> int:
        """Flush and give the descriptor away; this writer is done."""
        self.flush()
        descriptor = self._descriptor
        self._descriptor = -1
        return descriptor

    def _open(self, file: int | str | Path, flags: int, position: int) -> None:
        self.position = position
        self._name = f"descriptor {file}" if isinstance(file, int) else str(file)
        self._once: Once = operator.call
        self._unwritten = bytearray()
        self._flush_due_s = 0.0
        try:
            flags |= os.O_WRONLY | os.O_CLOEXEC
            self._descriptor = file if isinstance(file, int) else os.open(file, flags, 0o644)
        except OSError as error:
            raise JournalError(f"the journal {self._name} cannot be opened: {error}; give another folder") from error

    def keep(self, record: Record) -> None:
        self._append(records.encode(record))
        if isinstance(record, Decision) and record.time_s >= self._flush_due_s:
            self._flush_due_s = record.time_s + FLUSH_S
            self.flush()

    def note(self, text: str, now_s: float, worker: int | None = None) -> None:
        """Something that a reader will want to know, such as "worker 3 died"."""
        self.keep(Noted(now_s, worker, text.encode(errors="replace").decode()))  # without lone surrogates

    def resumed(self, version: int, held: Iterable[int], now_s: float) -> None:
        """The run goes on from a checkpoint of `version`, which is of this place in the journal; the workers `held` with what
        they held of their own."""
        self.keep(Resumed(now_s, version, tuple(sorted(held))))

    def end(self, version: int, weights_hash: str, now_s: float) -> None:
        """The run ended in order; closes the journal, durably."""
        self.keep(Ended(now_s, version, weights_hash))
        self.flush(durable=True)
        self.close()

    def flush(self, durable: bool = False) -> None:
        """Hand all so far to the system; `durable`: and wait until the disk has it, before a checkpoint relies on it."""
        if not self._unwritten and not durable:
            return
        written, why_not = self._once(partial(self._written, durable))
        del self._unwritten[:written]
        if why_not:
            raise JournalError(f"the journal {self._name} cannot be written: {why_not}; make room for it")

    def _written(self, durable: bool) -> tuple[int, str]:
        """How much of it all was written, and why not the rest."""
        written, begin = 0, self.position - len(self._unwritten)
        try:
            while written < len(self._unwritten):
                written += os.pwrite(self._descriptor, self._unwritten[written:], begin + written)
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            return written, str(error)
        return written, ""

    def close(self) -> None:
        """Flush and let go of the file; again is nothing."""
        if self._descriptor >= 0:
            self.flush()
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, body: bytes) -> None:
        if len(body) > records.RECORD_BYTES_MAX:
            raise JournalError(f"a record of {len(body)} bytes; a journal's have at most {records.RECORD_BYTES_MAX}")
        whole = records.frame_header(body, self.position) + body
        self._unwritten += whole
        self.position += len(whole)
        if self.copied is not None:
            self.copied(whole)
