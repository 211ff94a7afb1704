"""What workers hold of their own (an inner optimizer's state, what a codec left out), where the server finds it for a checkpoint.

A worker leaves what it held after its contribution `number` before it sends that. It has two places, by turns: the server wants
what belongs to the last contribution that was answered, while the worker may write beside the next one.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from plesio.errors import SharedMemoryError
from plesio.host.memory import anonymous_file

HEAD = struct.Struct("<qQ")
EVERYBODY = -1
"""In a worker's place: what is told to all of them, by version."""
PLACE = 1 << 40  # bytes; the file is sparse, and takes what was written
NOTHING = HEAD.pack(-1, 0)


class Held:
    """A sparse file in memory, by a descriptor `fd` of its own.

    >>> held = Held.create(workers=2)
    >>> held.put(1, 7, b"momentum"); held.get(1, 7), held.get(1, 8), held.get(0, 7)
    (b'momentum', None, None)
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls, workers: int) -> Held:
        """For so many workers; `SharedMemoryError`: this process may write no file as long as that, however sparse."""
        held = cls(anonymous_file(0, "what workers hold"))
        try:
            for worker in range(EVERYBODY, workers):
                held.forget(worker)
        except OSError as error:
            raise SharedMemoryError(
                f"checkpoints keep what workers hold in a sparse file, and this process may not write it ({error}); lift its "
                "limit (ulimit -f unlimited)"
            ) from error
        return held

    def put(self, worker: int, number: int, data: bytes) -> None:
        """This is what `worker` held after its contribution `number`."""
        with self.writing(worker, number) as file:
            file.write(data)

    @contextmanager
    def writing(self, worker: int, number: int) -> Iterator[IO[bytes]]:
        """A file for what `worker` held after its contribution `number`; it is known once it is whole, without an error."""
        start = _place(worker, number)
        os.pwrite(self.fd, NOTHING, start)
        place = _Place(self.fd, start + HEAD.size)
        with io.BufferedWriter(place) as file:
            yield file
        os.pwrite(self.fd, HEAD.pack(number, place.nbytes), start)

    def get(self, worker: int, number: int) -> bytes | None:
        """What `worker` held after its contribution `number`, one of the last two; None if it left nothing."""
        start = _place(worker, number)
        there, nbytes = HEAD.unpack(os.pread(self.fd, HEAD.size, start))
        if there != number:
            return None
        parts, at, end = [], start + HEAD.size, start + HEAD.size + nbytes
        while at < end:
            parts.append(os.pread(self.fd, end - at, at))
            at += len(parts[-1])
        return b"".join(parts)

    def forget(self, worker: int) -> None:
        """Nothing is known of what `worker` holds."""
        for number in range(2):
            os.pwrite(self.fd, NOTHING, _place(worker, number))

    def __del__(self) -> None:
        os.close(self.fd)


class _Place(io.RawIOBase):
    """A piece of a file, from byte `start` on, that is written in one go."""

    def __init__(self, fd: int, start: int) -> None:
        self._fd, self._start = fd, start
        self.nbytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        written = os.pwrite(self._fd, data, self._start + self.nbytes)
        self.nbytes += written
        return written


def _place(worker: int, number: int) -> int:
    return (2 * (worker - EVERYBODY) + number % 2) * PLACE
