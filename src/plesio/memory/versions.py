"""Published versions: a ring of whole-model buffers that readers pin.

A reader (a worker, or the evaluator) reads the buffer it was granted until it comes back for the next one, so it sees one
consistent version. The writer takes a buffer nobody pins. With one buffer per reader, plus the current version and the
one being written, there is always one. The buffer a worker pins is also the backup w_{t-tau} that delay compensation
needs, at no cost.

A worker whose step was cancelled reads its old buffer until it hears of that, and then the new one. It pins both, so each
worker that can be late needs one buffer more.
"""

from __future__ import annotations

from collections.abc import Sequence

from plesio.tensors.arena import Arena


class Versions:
    """The ring, who pins what, and which buffer is current.

    >>> ring = Versions(["a", "b", "c"])
    >>> ring.pin(reader=0, index=ring.current); ring.spare()
    1
    """

    def __init__(self, buffers: Sequence[Arena]) -> None:
        self.buffers = tuple(buffers)
        self.current = 0
        self._pinned: dict[int, int] = {}
        self._left: dict[int, int] = {}  # the old buffer of a cancelled reader, which may still read it
        self._readers = [0] * len(self.buffers)

    def pin(self, reader: int, index: int, unasked: bool = False) -> None:
        """`reader` reads buffer `index` from now on; `unasked`: its old buffer also stays pinned until it acknowledges."""
        last = self._pinned.get(reader) if unasked else None
        self.release(reader)
        self._pinned[reader] = index
        self._readers[index] += 1
        if last is not None:
            self._left[reader] = last
            self._readers[last] += 1

    def release(self, reader: int) -> None:
        for pins in (self._pinned, self._left):
            index = pins.pop(reader, None)
            if index is not None:
                self._readers[index] -= 1

    def release_all(self) -> None:
        for reader in list(self._pinned):
            self.release(reader)

    def index_of(self, reader: int) -> int | None:
        """The buffer that it reads; None if it reads none."""
        return self._pinned.get(reader)

    @property
    def read_by_workers(self) -> dict[int, int]:
        """The buffer that each worker reads; other readers have numbers below 0."""
        return {reader: index for reader, index in self._pinned.items() if reader >= 0}

    @property
    def readers(self) -> set[int]:
        """Who reads the current buffer."""
        pins = (*self._pinned.items(), *self._left.items())
        return {reader for reader, index in pins if index == self.current}

    def is_pinned(self, index: int) -> bool:
        return self._readers[index] > 0

    def of(self, reader: int) -> Arena:
        return self.buffers[self._pinned[reader]]

    def spare(self) -> int:
        """A buffer that is neither pinned nor current."""
        for index, readers in enumerate(self._readers):
            if readers == 0 and index != self.current:
                return index
        raise AssertionError("the ring has two buffers more than it has readers")
