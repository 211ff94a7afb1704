"""The versions of a run as one reader has them: a ring of buffers, of which an answer names one.

Which buffer holds a version the memory decides, and only the transport passes it on. All others are given what lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


def nothing_to_renew(place: int) -> None:
    """A version that comes overwrites what the reader wrote into the one before."""


class Shown(NamedTuple, Generic[T]):
    """A version: as it is read; as it was `made`, where that can be seen; and how to drop what the reader wrote into it."""

    read: T
    made: T
    renew: Callable[[], object]


class Ring(Generic[T]):
    """Buffers as they are `read`, and as they were `made`.

    Attributes:
        buffers: by the number that an answer names.
        in_place: the model's parameters are read where they lie: then `renew` drops what was written into a buffer.
        seen: what was made can be seen beside what is read.

    >>> ring = Ring(["a", "b", "packed a", "packed b"])
    >>> ring.buffers[1].read, ring.packed(1).read, ring.first.read
    ('b', 'packed b', 'a')
    """

    def __init__(self, read: Sequence[T], made: Sequence[T] = (), renew: Callable[[int], object] | None = None) -> None:
        self.in_place = renew is not None
        self.seen = bool(made) or not self.in_place
        renews = [partial(renew or nothing_to_renew, place) for place in range(len(read))]
        self._made = made or read
        self.buffers = [Shown(*one) for one in zip(read, made or read, renews, strict=True)]

    @property
    def first(self) -> Shown[T]:
        """Where there is one buffer, that; else where the initial parameters lie, and those that an evaluation asks for."""
        return self.buffers[0]

    @property
    def copied(self) -> Ring[T]:
        """The same for a reader that copies what it reads."""
        return Ring(self._made) if self.in_place else self

    def packed(self, place: int) -> Shown[T]:
        """Beside it: the same version as its reader is to unpack it."""
        return self.buffers[place + len(self.buffers) // 2]

    def leading(self, count: int) -> list[T]:
        """So many buffers, as they are read."""
        return [one.read for one in self.buffers[:count]]
