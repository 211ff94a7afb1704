"""What workers hold of their own (an inner optimizer's state, what a codec left out), where the server finds it for a checkpoint.

A worker leaves what it held after its contribution `number` before it sends that. It has two places, by turns: the server wants
what belongs to the last contribution that was answered, while the worker may write beside the next one. What the server has it go
on with instead, after a switch, lies in a third place: what it left stays, for a server that has to do the switch again.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import msgspec

from plesio.errors import SharedMemoryError
from plesio.system.memory import anonymous_file

HEAD = struct.Struct("<qQ")
EVERYBODY = -1
"""In a worker's place: what is told to all of them, by version."""
PLACE = 1 << 40  # bytes; the file is sparse, and takes what was written
SEVERAL = b"plesio ranks "
"""What the bytes of several processes begin with."""
NOTHING = HEAD.pack(-1, 0)
GIVEN = 2
"""The place of what the server gave."""
ASKED = PLACE - 1
"""The byte that says whether a checkpoint waits."""
LEFT_OUT, BEFORE = "left out", "left out before"
"""What packing left out, and what it had left out before the last contribution: that holds again if this comes too late."""
CLOSE_S = 10.0
"""Exchanges that are closer leave nothing of a device, unless a checkpoint waits: there is another one soon."""


class Held:
    """A sparse file in memory, by a descriptor `fd` of its own. A worker may be several processes: this is the `rank`-th of
    `ranks`, each of which has places of its own.

    >>> held = Held.create(workers=2)
    >>> held.put(1, 7, b"momentum"); held.get(1, 7), held.get(1, 8), held.get(0, 7)
    (b'momentum', None, None)
    """

    def __init__(self, fd: int, ranks: int = 1, rank: int = 0) -> None:
        self.fd = fd
        self._ranks, self._rank = ranks, rank

    @classmethod
    def create(cls, workers: int, ranks: int = 1) -> Held:
        """For so many workers of so many processes each; `SharedMemoryError`: this process may write no file as long as that,
        however sparse."""
        held = cls(anonymous_file(0, "what workers hold"), ranks)
        try:
            held.asked = True
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

    def give(self, worker: int, number: int, data: bytes) -> None:
        """`worker` goes on with this after its contribution `number`, whatever it left.

        >>> held = Held.create(workers=1)
        >>> held.put(0, 7, b"its own"); held.give(0, 7, b"everybody's"); held.get(0, 7), held.left(0, 7)
        (b"everybody's", b'its own')
        """
        with self.writing(worker, number, GIVEN) as file:
            file.write(data)

    @contextmanager
    def writing(self, worker: int, number: int, place: int | None = None) -> Iterator[IO[bytes]]:
        """A file for what `worker` held after its contribution `number`; it is known once it is whole, without an error."""
        start = self._start(worker, number % 2 if place is None else place)
        os.pwrite(self.fd, NOTHING, start)
        written = _FilePiece(self.fd, start + HEAD.size)
        with io.BufferedWriter(written) as file:
            yield file
        os.pwrite(self.fd, HEAD.pack(number, written.nbytes), start)

    def get(self, worker: int, number: int) -> bytes | None:
        """What `worker` goes on with after its contribution `number`, one of the last two; None if it left nothing."""
        given = self._read(self._start(worker, GIVEN), number)
        return self.left(worker, number) if given is None else given

    def left(self, worker: int, number: int) -> bytes | None:
        """What `worker` itself left after that contribution."""
        return self._read(self._start(worker, number % 2), number)

    def _read(self, start: int, number: int) -> bytes | None:
        there, nbytes = HEAD.unpack(os.pread(self.fd, HEAD.size, start))
        if there != number:
            return None
        parts, at, end = [], start + HEAD.size, start + HEAD.size + nbytes
        while at < end:
            parts.append(os.pread(self.fd, end - at, at))
            at += len(parts[-1])
        return b"".join(parts)

    @property
    def asked(self) -> bool:
        """Whether it may be wanted now: always, but where the server says that no checkpoint waits."""
        return os.pread(self.fd, 1, ASKED) == b"\1"

    @asked.setter
    def asked(self, asked: bool) -> None:
        os.pwrite(self.fd, bytes([asked]), ASKED)

    def has(self, worker: int, number: int) -> bool:
        """Whether there is what all processes of `worker` go on with after its contribution `number`."""

        def known(rank: int, place: int) -> bool:
            known, _ = HEAD.unpack(os.pread(self.fd, HEAD.size, self._start(worker, place, rank)))
            return bool(known == number)

        return all(known(rank, number % 2) or known(rank, GIVEN) for rank in range(self._ranks))

    def forget(self, worker: int) -> None:
        """Nothing is known of what `worker` holds."""
        for rank in range(self._ranks):
            for place in range(3):
                os.pwrite(self.fd, NOTHING, self._start(worker, place, rank))

    def put_all(self, worker: int, number: int, data: bytes) -> bool:
        """Give each process of `worker` its part of what `get_all` gave; False if they were not as many then."""
        parts = parts_of(data) or [data]
        if len(parts) != self._ranks:
            return False
        for rank, part in enumerate(parts):
            self._of(rank).put(worker, number, part)
        return True

    def get_all(self, worker: int, number: int) -> bytes | None:
        """What all processes of `worker` held after its contribution `number`; None if one of them left nothing."""
        parts = [self._of(rank).get(worker, number) for rank in range(self._ranks)]
        if self._ranks == 1:
            return parts[0]
        return SEVERAL + msgspec.msgpack.encode(parts) if all(parts) else None

    def _of(self, rank: int) -> Held:
        return Held(os.dup(self.fd), self._ranks, rank)

    def _start(self, worker: int, place: int, rank: int | None = None) -> int:
        process = worker * self._ranks + (self._rank if rank is None else rank) if worker != EVERYBODY else EVERYBODY
        return (3 * (process - EVERYBODY) + place) * PLACE

    def __del__(self) -> None:
        os.close(self.fd)


class _FilePiece(io.RawIOBase):
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


def parts_of(data: bytes) -> list[bytes]:
    """What each process held, of a worker that was several; nothing of one that was one."""
    return msgspec.msgpack.decode(data[len(SEVERAL) :], type=list[bytes]) if data.startswith(SEVERAL) else []
