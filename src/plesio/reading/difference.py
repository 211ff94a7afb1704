"""What travels of a version to a reader of another host that has an older one: both ends ask here."""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

from plesio.protocol import reading
from plesio.strategy.answers.codec import codec_in_short
from plesio.tensors.arena import Arena, Kind, Layout
from plesio.tensors.packing import Packing

ALIKE = (Kind.BUFFER, Kind.ROWS)
"""What is sent as it is."""


def spans(packing: Packing, layout: Layout) -> list[tuple[int, int]]:
    """The bytes (start, end) of an arena that travel."""
    return [*packing.spans(), *layout.stretches((Kind.ROWS,))]


def moved(packing: Packing, has: Arena, packed: Arena) -> None:
    """Move what a reader has by a packed difference."""
    packing.move(has, packed)
    has.copy_from(packed, *ALIKE)


def checksum_of(has: Arena) -> int:
    return xxh3_64_intdigest(has.bytes)


class Differences:
    """What a far reader has, and packed differences to newer versions. What a packing leaves out is in the next one."""

    def __init__(self, layout: Layout, want: reading.Want) -> None:
        self._codec = want.codec, want.part
        self._packing = Packing(layout, codec_in_short(*self._codec)).ready()
        self._has, self._packed = Arena.private(layout), Arena.private(layout)
        self._version = -1

    def by(self, want: reading.Want) -> bool:
        """Whether these are packed that way."""
        return (want.codec, want.part) == self._codec

    def to(self, true: Arena, version: int, held: int) -> list[memoryview] | None:
        """The difference to this version for one that has what it was given as version `held`; None: it has to be given all."""
        has = self._has
        known, self._version = self._version, version
        if held < 0 or held != known:
            has.copy_from(true)
            return None
        self._packing.pack(true, has, self._packed, None)
        self._packed.copy_from(true, *ALIKE)
        moved(self._packing, has, self._packed)
        return [self._packed.bytes[start:end] for start, end in spans(self._packing, has.layout)]

    @property
    def checksum(self) -> int:
        """Of what the reader has by now."""
        return checksum_of(self._has)
