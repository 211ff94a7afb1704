"""The weights that a reader has of a run: mapped where they lie on its own host, else moved by what is sent."""

from __future__ import annotations

import os

from plesio.protocol import reading
from plesio.reading.difference import checksum_of, moved, spans
from plesio.reading.line import FarLine, Line, LineLostError, NearLine
from plesio.reading.shelf import mapped
from plesio.strategy.answers.codec import Codec, in_short
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.packing import Packing


class Weights:
    """Those of one version. From another host differences come, packed by `codec`, if there is one.

    Attributes:
        arena: where they lie; None before any came.
        held: the version that the next difference may be to; -1: all are to come.
    """

    def __init__(self, layout: Layout, codec: Codec | None) -> None:
        self._layout, self._codec = layout, codec
        self._packing = Packing(layout, codec) if codec is not None else None
        self.arena: Arena | None = None
        self.held = -1

    def forget(self) -> None:
        """Whoever serves this reader from now on does not know what it has."""
        self.held = -1

    def packs(self, line: Line[reading.ToReader]) -> tuple[str, float]:
        """How they are to be packed."""
        return in_short(self._codec) if self._codec is not None and isinstance(line, FarLine) else ("", 0.0)

    def take(self, line: Line[reading.ToReader], told: reading.Given) -> None:
        """Take those that come with this. Raises LineLostError if they are not what was sent."""
        if isinstance(line, NearLine):
            (descriptor,) = line.taken()
            self.arena = Arena(self._layout, mapped(descriptor, self._layout.nbytes))
            os.close(descriptor)
            return
        assert isinstance(line, FarLine), "there are two kinds"
        if self.arena is None:
            self.arena = Arena.private(self._layout)
        if told.packed:
            assert self._packing is not None, "it was asked for"
            packed = Arena.private(self._layout)
            line.take([packed.bytes[start:end] for start, end in spans(self._packing, self._layout)])
            moved(self._packing, self.arena, packed)
        else:
            line.take([self.arena.bytes])
        self.held = told.version
        if checksum_of(self.arena) != told.checksum:
            self.held = -1  # all of it comes the next time
            raise LineLostError(f"version {told.version} came with another checksum")
