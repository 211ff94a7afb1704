"""What workers are shown where answers are packed, too: about the parameters, and each time nearer.

Nobody but the server has the true parameters (the ring's current buffer, which is never published). A worker goes on from what it
was shown before, plus the packed difference between the true ones and that. So whatever a packing leaves out is in the next
difference: the shown parameters are the error memory. The packed bytes lie in the second half of the ring, behind the buffer that
they made. Of a model in parts, what a worker is shown moves in the part that it exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plesio.core.events import Fold
from plesio.memory.publish import Publisher, Versions
from plesio.strategy.answers import Codec
from plesio.tensors.arena import ALL_PARTS, Arena, Kind
from plesio.tensors.carrying import Kept, Part
from plesio.tensors.packing import Packing


class Packed(Publisher, Part):
    """Publishes packed differences; the true parameters stay where they are.

    Args:
        versions: the buffers that are shown, and the true one.
        packed: beside each, where its packed bytes go.
    """

    writes = True

    def __init__(self, codec: Codec, versions: Versions, packed: Sequence[Arena]) -> None:
        super().__init__(versions, None)
        self._packing = Packing(versions.buffers[0].layout, codec).ready()
        self._packed = packed
        self._made: dict[tuple[int | None, int], int] = {}
        """The buffer made for this version, by the buffer it was packed against (None: whole) and the part that moves."""

    def next(self, fold: Fold, step: object) -> int:
        return self._next_in_place()

    def made(self, index: int) -> None:
        super().made(index)
        self._made.clear()

    def publish(self, reader: int, unasked: bool = False, part: int = ALL_PARTS) -> int:
        """Pin a buffer with what `reader` goes on from; readers that were shown the same share it."""
        assert not unasked, "who is called off takes the parameters whole"
        base = self.versions.index_of(reader)
        index = self._made.get((base, part))
        if index is None or not self.versions.is_pinned(index):
            index = self.versions.spare()
            self._show(base, index, part)
        elif index == base:  # it has what is shown of this version: nothing moves
            self._packed[index].memory.zero_()
            self._packed[index].copy_from(self.versions.buffers[index], Kind.BUFFER)
        self.published(reader, index, part)
        return index

    def published(self, reader: int, index: int, part: int = ALL_PARTS) -> None:
        by = self.versions.index_of(reader), part
        if self._made.get(by) != index or not self.versions.is_pinned(index):
            self._written(index)
            self._made[by] = index
        self.versions.pin(reader, index)

    def kept(self) -> Kept:
        """What each worker reads; `made`: what it was shown of this version."""
        read = self.versions.read_by_workers
        buffers = sorted(set(read.values()))
        return Kept(
            {f"shown {place}": self.versions.buffers[index].memory for place, index in enumerate(buffers)},
            {
                "read": [[worker, buffers.index(index)] for worker, index in read.items()],
                "made": [buffers.index(index) for index in buffers if index in self._made.values()],
            },
        )

    def restore(self, numbers: dict[str, Any]) -> None:
        """Workers read as they did; the tensors that `kept` then names are to be filled."""
        for place in range(len({place for _, place in numbers["read"]})):
            index = self.versions.spare()
            for worker in [worker for worker, read in numbers["read"] if read == place]:
                self.versions.pin(worker, index)
            if place in numbers["made"]:
                self._made[index, ALL_PARTS] = index

    def begin_anew(self) -> None:
        """As after a restore: what was shown of this version is shown again."""
        self._made = {(index, ALL_PARTS): index for index in self._made.values()}

    def whole(self, reader: int) -> int:
        """Pin a buffer with the true parameters."""
        index = self.versions.spare()
        self._show(None, index, ALL_PARTS)
        self.pinned_whole(reader, index)
        return index

    def pinned_whole(self, reader: int, index: int) -> None:
        self._written(index)
        self.versions.pin(reader, index)

    def _written(self, index: int) -> None:
        """Something else is in that buffer."""
        self._made = {by: made for by, made in self._made.items() if index not in (by[0], made)}

    def _show(self, base: int | None, index: int, part: int) -> None:
        buffers = self.versions.buffers
        true, new = buffers[self.versions.current], buffers[index]
        if base is None:
            new.copy_from(true)
            return
        before, packed = buffers[base], self._packed[index]
        self._packing.pack(true, before, packed, None, part)
        packed.copy_from(true, Kind.BUFFER)
        new.copy_from(before)
        self._packing.move(new, packed, part)
