"""The log of what a server decides, for standbys: a ring of bytes in memory, which another process sends on.

    server --put--> ring --frames--> the standbys' process --connection--> standby
             <----- words: what standbys have, until when to lead -----

An entry is a frame: a message, and perhaps bytes of tensors. Where the ring is full of what is not `sent` yet, the server waits:
a run goes at the pace of its standbys. It waits for `WAITS_S` at most. Whoever is behind then finds that out by itself
(`FellBehindError`), and begins anew from a newer state.

| word      | who writes it        | what                                                                   |
| --------- | -------------------- | ---------------------------------------------------------------------- |
| `begun`   | the server           | up to where it may be writing: what lies a ring before that is gone    |
| `written` | the server           | up to where entries are whole                                          |
| `sent`    | the standbys' process | up to where all standbys were sent it                                  |
| `has`     | the standbys' process | up to where all have it that an answer waits for                       |
| `leads_s` | the standbys' process | until when the server may decide, on the monotonic clock               |
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import NamedTuple

from plesio.system.memory import SharedBlock
from plesio.tensors.arena import PAGE

FRAME = struct.Struct("<QQ")
ALL = (1 << 63) - 1
"""More than any log's length: nobody is waited for."""


WAITS_S = 10.0
"""How long the server waits for room: longer than a connection lives on which no byte moves."""
LOOK_S = 2e-4


class FellBehindError(Exception):
    """What was to be read next is overwritten."""


class Entry(NamedTuple):
    """A frame, and up to where it reaches. `payload`: where it lies, in one piece or two."""

    end: int
    message: bytes
    payload: list[memoryview]


class _Word:
    """One of the numbers, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, log: ReplicationLog, kind: type[ReplicationLog]) -> int:
        return log._words[self._place]

    def __set__(self, log: ReplicationLog, value: int) -> None:
        log._words[self._place] = value


class ReplicationLog:
    """Both processes' view of one; `bell`, `echo`: eventfds that the server rings for an entry, and the other for `has`.

    >>> log = ReplicationLog.create(PAGE)
    >>> log.put(b"one", [memoryview(b"xy")]); log.put(b"two")
    >>> [(entry.message, [bytes(part) for part in entry.payload]) for entry in log.entries(0)]
    [(b'one', [b'xy']), (b'two', [])]
    """

    begun, written, has, sent = _Word(0), _Word(1), _Word(2), _Word(4)

    def __init__(self, block: SharedBlock, bell: int, echo: int) -> None:
        self._block, self.bell, self.echo = block, bell, echo
        whole = block.memory.numpy().data
        self._words = whole[:PAGE].cast("q")
        self._times = whole[:PAGE].cast("d")
        self._ring = whole[PAGE:]

    @classmethod
    def create(cls, nbytes: int) -> ReplicationLog:
        """An empty one, with a ring of at least so many bytes."""
        block = SharedBlock.create(PAGE + nbytes, "the log for standbys")
        log = cls(block, *(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)))
        log.has, log.sent, log.leads_s = ALL, ALL, inf
        return log

    @classmethod
    def attach(cls, descriptors: Iterable[int]) -> ReplicationLog:
        """Another process's; it takes the descriptors over."""
        memory, bell, echo = descriptors
        return cls(SharedBlock(memory, os.fstat(memory).st_size), bell, echo)

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self._block.fd, self.bell, self.echo

    @property
    def leads_s(self) -> float:
        return self._times[3]

    @leads_s.setter
    def leads_s(self, until_s: float) -> None:
        self._times[3] = until_s

    # The server

    def put(self, message: bytes, payload: Iterable[memoryview] = ()) -> None:
        """Add an entry."""
        views = [memoryview(message), *payload]
        nbytes = sum(view.nbytes for view in views)
        at = self.written
        end = at + FRAME.size + nbytes
        assert end - at <= len(self._ring), "the ring is larger than any entry"
        waits_until_s = 0.0
        while end - self.sent > len(self._ring):
            now_s = time.monotonic()
            waits_until_s = waits_until_s or now_s + WAITS_S
            if now_s > waits_until_s:
                break
            time.sleep(LOOK_S)
        self.begun = end
        at = self._lay(at, memoryview(FRAME.pack(len(message), nbytes - len(message))))
        for view in views:
            at = self._lay(at, view)
        self.written = end
        os.eventfd_write(self.bell, 1)

    def _lay(self, at: int, view: memoryview) -> int:
        done = 0
        for place in self._places(at, view.nbytes):
            place[:] = view[done : done + len(place)]
            done += len(place)
        return at + done

    def _places(self, at: int, nbytes: int) -> list[memoryview]:
        """Where so many bytes of the log lie."""
        begin = at % len(self._ring)
        first = min(nbytes, len(self._ring) - begin)
        places = self._ring[begin : begin + first], self._ring[: nbytes - first]
        return [one for one in places if len(one)]

    # Who reads it

    def entries(self, at: int) -> Iterator[Entry]:
        """Those from that place on that are whole by now. Whoever has used one asks `check` whether it was."""
        while at < self.written:
            self.check(at)
            message, payload = FRAME.unpack(b"".join(self._places(at, FRAME.size)))
            self.check(at)
            begin = at + FRAME.size
            end = begin + message + payload
            yield Entry(end, b"".join(self._places(begin, message)), self._places(begin + message, payload))
            at = end

    def check(self, at: int) -> None:
        """Raise `FellBehindError` if what begins there may be overwritten."""
        if self.begun - at > len(self._ring):
            raise FellBehindError

    def heard(self, bell: int) -> None:
        """Whoever was rung for by this one looks now."""
        with suppress(BlockingIOError):
            os.eventfd_read(bell)

    def rings_back(self) -> None:
        """`has` is another."""
        os.eventfd_write(self.echo, 1)
