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


class File:
    """What a name stands for; until it is synced a crash may cut it short."""

    __slots__ = ("content", "synced")

    def __init__(self, content: bytes, synced: bool = False) -> None:
        self.content = content
        self.synced = synced


class Disk:
    """A folder with a temporary file and the checkpoint, which is written in the steps of `STEPS`.

    >>> disk = Disk(random.Random(0))
    >>> for step in disk.STEPS:
    ...     getattr(disk, step)(b"one")
    >>> disk.write(b"two"); disk.crash(); disk.load()
    b'one'
    """

    STEPS: tuple[str, ...] = ("write", "sync", "rename", "sync_folder")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._temporary = File(b"", synced=True)
        self._shown = self._temporary  # what the checkpoint's name stands for
        self._kept = self._temporary  # and what it surely stands for after a crash

    def write(self, content: bytes) -> None:
        """Write the temporary file."""
        self._temporary = File(sealed(content))

    def sync(self, content: bytes) -> None:
        """fsync the temporary file."""
        self._temporary.synced = True

    def rename(self, content: bytes) -> None:
        """Let the temporary file take the checkpoint's name."""
        self._shown = self._temporary

    def sync_folder(self, content: bytes) -> None:
        """fsync the folder: the rename can no longer be lost."""
        self._kept = self._shown

    def crash(self) -> None:
        """The machine stops: a rename that was not synced was made or not, a file that was not may be cut short."""
        if self._rng.random() < 0.5:
            self._kept = self._shown
        for file in (self._kept, self._temporary):
            if not file.synced:
                file.content, file.synced = file.content[: self._rng.randrange(len(file.content) + 1)], True
        self._shown = self._kept

    def load(self) -> bytes | None:
        """The checkpoint, if there is a whole one."""
        return opened(self._shown.content)

    def surviving(self) -> bytes | None:
        """What `load` would give after the unluckiest crash; None if it might give nothing."""
        return opened(self._kept.content) if self._kept.synced and self._shown.synced else None
