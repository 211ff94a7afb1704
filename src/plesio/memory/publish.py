"""The last part of a fold: where the next version goes, and what of it readers are shown."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from plesio.memory.versions import Versions
from plesio.tensors.rows import Tables


class Publisher:
    """Shows the current version itself. Where a round has everybody who reads it, and `in_place` allows, the next one is written
    there: a fifth faster."""

    def __init__(self, versions: Versions, tables: Tables | None, in_place: bool = False) -> None:
        self.versions = versions
        self._tables = tables
        self._in_place = in_place

    def next(self, members: AbstractSet[int], one_pass: bool) -> int:
        """The buffer that the next version goes into; `one_pass`: it is made line by line of memory."""
        if self._in_place and one_pass and self.versions.readers <= members:
            return self.versions.current
        return self.versions.spare()

    def made(self, index: int) -> None:
        """The next version is there."""
        self.versions.current = index

    def rewritten(self) -> None:
        """It was written into once more."""

    def publish(self, reader: int, unasked: bool = False) -> int:
        """Pin the buffer `reader` is to go on from (`unasked`: beside the one it reads until it knows); its index."""
        self.versions.pin(reader, self.versions.current, unasked)
        if self._tables is not None:
            self._tables.read(reader)
        return self.versions.current

    def whole(self, reader: int) -> int:
        """Pin a buffer with the global parameters as they are; its index."""
        self.versions.pin(reader, self.versions.current)
        return self.versions.current

    def forget(self, reader: int) -> None:
        """It reads nothing any more."""
        self.versions.release(reader)

    def begin_anew(self) -> None:
        """As after a restore: nobody reads anything."""
        self.versions.release_all()
