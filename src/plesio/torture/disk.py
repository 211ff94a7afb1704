"""A disk that forgets what was not synced when its machine crashes: the file cut short, the rename not made."""

from __future__ import annotations

import random
import zlib

CHECKSUM_BYTES = 4


def sealed(body: bytes) -> bytes:
    """A file's content with its checksum in front."""
    return zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "little") + body


def opened(content: bytes) -> bytes | None:
    """The body of a file; None if it is not whole."""
    body = content[CHECKSUM_BYTES:]
    return body if content[:CHECKSUM_BYTES] == zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "little") else None


class Disk:
    """A folder with a temporary file and the checkpoint; a checkpoint is written in the four steps of `STEPS`.

    >>> disk = Disk(random.Random(0))
    >>> for step in disk.STEPS:
    ...     getattr(disk, step)(b"one")
    >>> disk.write(b"two"); disk.crash(); disk.load()
    b'one'
    """

    STEPS = ("write", "sync", "rename", "sync_folder")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._temporary = b""
        self._synced = False
        self._current = b""  # what the name shows
        self._current_synced = True
        self._kept = b""  # what the name shows after a crash

    def write(self, content: bytes) -> None:
        """Write the temporary file."""
        self._temporary, self._synced = sealed(content), False

    def sync(self, content: bytes) -> None:
        """fsync the temporary file."""
        self._synced = True

    def rename(self, content: bytes) -> None:
        """Let the temporary file take the checkpoint's name."""
        self._current, self._current_synced = self._temporary, self._synced

    def sync_folder(self, content: bytes) -> None:
        """fsync the folder: the rename can no longer be lost."""
        self._kept = self._current

    def crash(self) -> None:
        """The machine stops: a rename that was not synced may or may not have been made, a file may be cut short."""
        self._temporary = self._torn(self._temporary, self._synced)
        if self._rng.random() < 0.5:
            self._kept = self._current
        if self._kept is self._current:
            self._kept = self._torn(self._kept, self._current_synced)
        self._current, self._current_synced = self._kept, True

    def _torn(self, content: bytes, synced: bool) -> bytes:
        return content if synced else content[: self._rng.randrange(len(content) + 1)]

    def load(self) -> bytes | None:
        """The checkpoint, if there is a whole one."""
        return opened(self._current)
