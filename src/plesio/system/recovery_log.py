"""What a process heard and what came of it, in memory that outlives it: whoever takes over does the same again.

A process forks a spare of itself, which sleeps. What the process could not compute a second time goes through its log: what it
reads (`read`), and the results of what it does to others (`once`). When it dies the spare wakes and runs the same code. The log
gives it what the dead process got. Where the log ends the spare does things itself, and is the process.

    forked                                      dies in here
      |                                               |
      |-- turn, read, once, once -- turn, read, once --|
                                                       `- in the spare: `once` has it done now, and it goes on from there

| died                             | the spare                                                                |
| -------------------------------- | ------------------------------------------------------------------------ |
| before `do` of `once`            | does it                                                                  |
| between it and its record        | does it again: what is done through `once` may be done twice             |
| after its record                 | takes the result from the log                                            |
| between reading and its record   | finds the bytes where the record was to be: nothing that came is lost    |

Each entry is written first, and counts when the 8 bytes that say how far the log reaches are stored. The log has two halves:
a new spare begins an empty one, and `generation` says whose half counts. Until there is a spare nothing is recorded, and
nothing any more after a turn for which there was no room: then no spare takes over, until there is a new one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import termios
import time
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from plesio.system.memory import anonymous_file

T = TypeVar("T")
ENTRY = struct.Struct("<IB")
"""Before each entry: how long it is, and what."""
TURN, READ, DONE = range(3)
TURNED = struct.Struct("<qd")
WHOLE_TURN = struct.Struct("<IBqd")
REACHES, READING, COMING, GENERATION, TURN_AT, LATEST, WORDS = 0, 2, 3, 4, 5, 6, 8
"""The words at the beginning: how far each half reaches, where bytes are being read to and how many, whose half
counts, where the turn under way begins, and the latest number of a half."""
NOBODY = 2**64 - 1
"""Whose half counts when nobody's does."""
UNREAD = bytes.fromhex("9f3c517bd2e84a06b1c7f20d64985ea3")
"""What lies where bytes are about to be read to. Nobody sends it: until it is gone they are not read."""
READ_MOST = 1 << 16
_waits = array("i", [0])
encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
TURNS_MOST = 4000
"""How many a spare may have to take. They take some 0.1 s; to fork takes a few milliseconds, and so do the page faults after."""
_FREE = 1 << 18
"""What a half keeps free: one turn's entries."""


class RecoveryLog:
    """The log of one process, and after its death of its spare.

    Args:
        half_bytes: of each half. `rest` says when a new spare is wanted.

    >>> log = RecoveryLog(1 << 20)
    >>> log.begin()
    >>> log.once(lambda: "done")
    'done'
    >>> log.recover()  # as in a spare
    >>> log.once(lambda: "done a second time")
    'done'
    >>> log.once(lambda: "next")
    'next'
    """

    def __init__(self, half_bytes: int = 1 << 21) -> None:
        size = WORDS * 8 + 2 * half_bytes
        self._map = mmap.mmap(
            descriptor := anonymous_file(size, "the log that a server's successor goes on from"), size
        )
        os.close(descriptor)
        memory = memoryview(self._map)
        memory[:] = bytes(size)  # the system has to find room for it now, and not while something is read into it
        self._words = memory[: WORDS * 8].cast("Q")
        self._halves = [memory[WORDS * 8 + at * half_bytes :][:half_bytes] for at in range(2)]
        self.generation = 0
        """Which spare it is for; a later one has a larger number."""
        self._at = 0  # up to where this process wrote, or recovered
        self._end = 0  # up to where there is something to recover
        self.recovering = False
        """Whether what is asked for is in the log."""
        self.recording = False
        """Whether there is a spare that could take over."""
        self.turned_s = 0.0
        """When the turn under way began."""
        self.turns = 0
        """How many a spare would have to do again, and has of them done again."""
        self._open_half()

    def begin(self) -> None:
        """A spare is about to be forked: what comes from now on is for it. It counts once `counts` is called."""
        latest = self._words[LATEST] + 1  # a process that died before its spare counted had a number for it
        self._words[LATEST] = self.generation = latest + (latest % 2 == self.generation % 2)
        self._open_half()
        self._at = self.turns = self._words[self._reaches] = self._words[READING] = 0
        self.recording = True

    def give_up(self) -> None:
        """There is no spare that could take over: nothing is recorded."""
        self._words[GENERATION] = NOBODY
        self.recording = False

    def counts(self) -> None:
        """The spare that was forked last is the one that takes over."""
        self._words[GENERATION] = self.generation

    @property
    def is_mine(self) -> bool:
        """In a spare: whether it is the one that takes over."""
        return self._words[GENERATION] == self.generation

    @property
    def place(self) -> tuple[int, int]:
        """In a spare that wakes: the turn in which the process died, the same one for each that dies in it; (0, 0): in none."""
        at = self._words[TURN_AT]
        return (self.generation, at) if at else (0, 0)

    def recover(self) -> None:
        """In the spare: from now on give what the dead process got."""
        self._at, self._end = 0, self._words[self._reaches]
        self.recovering = self._end > 0

    def turn(self, source: int, now_s: float) -> None:
        """`source` is about to be dealt with, at `now_s`."""
        self.turned_s = now_s
        start, words = self._at, self._words
        if self.recording and (end := start + WHOLE_TURN.size) <= self._size:
            self.turns += 1
            WHOLE_TURN.pack_into(self._map, self._begins + start, TURNED.size, TURN, source, now_s)
            self._at = words[self._reaches] = words[TURN_AT] = end
        elif self.recording:
            self.give_up()

    def rest(self) -> bool:
        """The turn is over, and somebody is waited for. Whether a new spare is wanted."""
        self._words[TURN_AT] = 0
        return self.turns >= TURNS_MOST or self._size - self._at < _FREE or not self.recording

    def next_turn(self) -> tuple[int, float] | None:
        """While recovering: what was dealt with next, and when; None after the last."""
        if not self.recovering:
            return None
        self.turns += 1
        source, self.turned_s = TURNED.unpack(self._take(TURN))
        return source, self.turned_s

    def now_s(self) -> float:
        """The time: in a turn it stands still, but for `turned_s`."""
        return self.turned_s if self.recording else time.monotonic()

    def once(self, do: Callable[[], T]) -> T:
        """The result of `do`, which is done now if the log does not have it. A plain value, that msgpack can hold."""
        if self.recovering:
            result: T = decode(self._take(DONE))
            return result
        return self.enter(do())

    def enter(self, result: T) -> T:
        """The other half of `once`: `result` came of what this process has just done."""
        if not self.recording:
            return result
        body = encode(result)
        entry, begin = ENTRY.pack(len(body), DONE) + body, self._begins + self._at
        if (end := self._at + len(entry)) > self._size:
            self.give_up()
        else:
            self._map[begin : begin + len(entry)] = entry
            self._at = self._words[self._reaches] = end
        return result

    def sent(self, do: Callable[..., float], *about: Any) -> float:
        """As `once`, of what gives the time when it was done, or 0: the turn's time goes on to then."""
        sent_s = self.once(float) if self.recovering else self.enter(do(*about))
        self.turned_s = sent_s or self.turned_s
        return sent_s

    def read(self, descriptor: int, most: int = READ_MOST) -> bytes:
        """Bytes that have come on a pipe or a socket, at most 64 KiB; none at its end. Descriptors that come with them are
        lost."""
        if self.recovering:
            return bytes(self._take(READ))
        most, memory, words, start = min(most, READ_MOST), self._map, self._words, self._at + ENTRY.size
        if self.recording and start + most > self._size:
            self.give_up()
        if not self.recording:
            return os.read(descriptor, most)
        begin = self._begins + start
        if words[READING] == start and memory[begin : begin + len(UNREAD)] != UNREAD:
            size = words[COMING]  # the dead process had just read them
        else:
            fcntl.ioctl(descriptor, termios.FIONREAD, _waits)  # how many can be read; quicker into a buffer
            size = min(_waits[0], most)
            memory[begin : begin + len(UNREAD)] = UNREAD
            words[COMING] = size
            words[READING] = start
            try:
                size = os.readv(descriptor, (self._half[start : start + size],))
            except ConnectionResetError:  # a line that was broken off is at its end
                size = 0
        ENTRY.pack_into(memory, begin - ENTRY.size, size, READ)
        self._at = words[self._reaches] = start + size
        return memory[begin : begin + size]

    def _open_half(self) -> None:
        which = self.generation % 2
        self._half = self._halves[which]
        self._size = len(self._half)
        self._begins = WORDS * 8 + which * self._size  # in the map, which is written faster
        self._reaches = REACHES + which

    def _take(self, kind: int) -> memoryview[Any]:
        size, found = ENTRY.unpack_from(self._half, self._at)
        assert found == kind, "the spare does what the dead process did"
        start = self._at + ENTRY.size
        self._at = start + size
        self.recovering = self._at < self._end
        return self._half[start : self._at]
