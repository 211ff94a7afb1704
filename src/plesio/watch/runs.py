"""The runs that a page can show, and what is new in the record of each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from plesio.errors import as_utf8
from plesio.observe.history import CONFIGURATION
from plesio.observe.record import FORMAT, LIVE, ending

READ_MAX = 1 << 20  # bytes of a record that are read at once
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


class _RecordLine(msgspec.Struct):
    n: int
    kind: str
    format: int = 0
    strategy: str = ""
    began: float = 0.0


class Listed(msgspec.Struct, frozen=True):
    """A run in the list."""

    name: str
    strategy: str
    began: float  # in seconds since 1970
    silent_s: float  # since it last wrote
    ended: bool = False
    other: str = ""  # why it cannot be shown


def found(runs: Path) -> dict[str, Path]:
    """The folders with a record, by name: `runs` itself, those in it, and one below (as those of a run on Ray)."""
    if (runs / LIVE).is_file():
        return {runs.resolve().name: runs}
    return {as_utf8(str(one.relative_to(runs))): one for one in _folders(runs, depth=2)}


def _folders(place: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError), os.scandir(place) as entries:  # it may be removed meanwhile
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            if os.path.isfile(path / LIVE):  # False where it may not be read (lost+found)
                yield path
            elif depth > 1 and not os.path.isfile(path / CONFIGURATION):
                yield from _folders(path, depth - 1)


def listed(runs: Path) -> list[Listed]:
    """All runs, the one that began last first."""
    known = [one for name, path in found(runs).items() for one in _listed(name, path)]
    return sorted(known, key=lambda one: (one.began, one.name), reverse=True)


def _listed(name: str, path: Path) -> Iterator[Listed]:
    with suppress(OSError):  # it may be removed meanwhile
        changed = (path / LIVE).stat().st_mtime
        silent_s = max(0.0, time.time() - changed)
        try:
            with open(path / LIVE, "rb") as file:
                head = msgspec.json.decode(file.readline(READ_MAX), type=_RecordLine)
        except UNREADABLE:
            yield Listed(name, "?", changed, silent_s, other="its record is damaged or half-written")
            return
        if head.kind == "head" and head.format == FORMAT:
            yield Listed(name, head.strategy, head.began, silent_s, ending(path) is not None)
        else:
            why = "its record is of another version of plesio"
            yield Listed(name, head.strategy or "?", changed, silent_s, other=why)


class Tail:
    """The lines added to a record since the last read; the file may have been replaced by a shorter one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LIVE
        self._inode = self._place = self._seen = 0
        self.goes_on = False
        """Whether the last lines came after others had been read."""

    def lines(self) -> list[str]:
        """The next whole lines, at most about `READ_MAX` bytes of them. A line that is no JSON is left out.
        An `OSError` says that the record is gone."""
        self.goes_on = self._seen > 0
        with open(self._path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode or os.fstat(file.fileno()).st_size < self._place:
                self._inode, self._place = inode, 0
            file.seek(self._place)
            data = file.read(READ_MAX)
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole) or (len(data) if len(data) == READ_MAX else 0)  # a line that long is no line of ours
        return [line.decode(errors="replace") for line in whole.splitlines() if self._is_new(line)]

    def _is_new(self, line: bytes) -> bool:
        try:
            number = msgspec.json.decode(line, type=_RecordLine).n
        except UNREADABLE:
            return False
        new, self._seen = number > self._seen, max(number, self._seen)
        return new
