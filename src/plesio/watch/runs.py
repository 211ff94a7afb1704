"""The runs that a page can show, and what is new in the record of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from plesio.observe.record import FORMAT, LIVE

SILENT_S = 30.0
"""A run that wrote nothing for so long, and no end, is shown as silent."""
READ_MAX = 1 << 20
"""Bytes of a record that are read at once."""


class _Line(msgspec.Struct):
    n: int
    kind: str
    format: int = 0
    strategy: str = ""


class Listed(msgspec.Struct, frozen=True):
    """A run in the list. `changed`: when it last wrote, in seconds since 1970; `other`: why it cannot be shown, if so."""

    name: str
    strategy: str
    changed: float
    other: str = ""


def found(runs: Path) -> dict[str, Path]:
    """The folders with a record, by name: `runs` itself, those in it, and one below (as those of a run on Ray)."""
    if (runs / LIVE).is_file():
        return {runs.resolve().name: runs}
    return {str(one.relative_to(runs)): one for one in _folders(runs, depth=2)}


def _folders(place: Path, depth: int) -> Iterator[Path]:
    with suppress(OSError), os.scandir(place) as entries:  # it may be removed meanwhile
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            if (path / LIVE).is_file():
                yield path
            elif depth > 1 and not (path / "run.toml").is_file():
                yield from _folders(path, depth - 1)


class Book:
    """The list of runs; the head of each is read once."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._heads: dict[str, tuple[str, str]] = {}

    def listed(self) -> list[Listed]:
        """All runs, the one that wrote last first."""
        paths = found(self.runs)
        self._heads = {name: head for name, head in self._heads.items() if name in paths}
        runs = []
        for name, path in paths.items():
            if name not in self._heads:
                self._heads[name] = _head(path)
            with suppress(OSError):
                runs.append(Listed(name, self._heads[name][0], (path / LIVE).stat().st_mtime, self._heads[name][1]))
        return sorted(runs, key=lambda one: one.changed, reverse=True)


def _head(path: Path) -> tuple[str, str]:
    """The strategy of a run; and why it cannot be shown, if so."""
    try:
        with open(path / LIVE, "rb") as file:
            head = msgspec.json.decode(file.readline(READ_MAX), type=_Line)
    except OSError as error:
        return "?", error.strerror or "cannot be read"
    except msgspec.DecodeError:
        return "?", "its record is damaged or half-written"
    if head.kind != "head" or head.format != FORMAT:
        return head.strategy or "?", "its record is of another version of plesio"
    return head.strategy, ""


class Tail:
    """What is new in a record each time it is read, however often the file is replaced by a shorter one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LIVE
        self._inode = self._place = self._seen = 0

    def lines(self) -> list[str]:
        """The next whole lines, at most about `READ_MAX` bytes of them. A line that is no JSON is left out.

        Raises:
            OSError: the record is gone.
        """
        with open(self._path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode or os.fstat(file.fileno()).st_size < self._place:
                self._inode, self._place = inode, 0
            file.seek(self._place)
            data = file.read(READ_MAX)
        whole = data[: data.rfind(b"\n") + 1]
        self._place += len(whole) or (len(data) if len(data) == READ_MAX else 0)  # a line that long is no line of ours
        return [line.decode() for line in whole.splitlines() if self._is_new(line)]

    def _is_new(self, line: bytes) -> bool:
        try:
            number = msgspec.json.decode(line, type=_Line).n
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        new, self._seen = number > self._seen, max(number, self._seen)
        return new
