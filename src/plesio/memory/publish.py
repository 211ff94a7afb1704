"""The last part of a fold: where the next version goes, and what of it readers are shown.

Versions lie in a ring of whole-model buffers that readers pin. A reader (a worker, or the evaluator) reads the buffer it was
granted until it comes back for the next one, so it sees one consistent version. The writer takes a buffer nobody pins. With one
buffer per reader, plus the current version and the one being written, there is always one. The buffer a worker pins is also the
backup w_{t-tau} that delay compensation needs, at no cost.

A worker whose step was cancelled reads its old buffer until it hears of that, and then the new one. It pins both, so each
worker that can be late needs one buffer more. So does each one that computes the next gradient while an answer travels (`late`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from plesio.core.events import Fold
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import ALL_PARTS, Arena, Kind
from plesio.tensors.rows import Tables


class Versions:
    """The ring, who pins what, and which buffer is current.

    >>> ring = Versions(["a", "b", "c"])
    >>> ring.pin(reader=0, index=ring.current); ring.spare()
    1
    """

    def __init__(self, buffers: Sequence[Arena], late: bool = False) -> None:
        self.buffers = tuple(buffers)
        self._late = late
        self.current = 0
        self.lasting: int | None = None
        """The buffer that is to stay as it is, though no longer current."""
        self._pinned: dict[int, int] = {}
        self._left: dict[int, int] = {}  # the old buffer of a cancelled reader, which may still read it
        self._readers = [0] * len(self.buffers)

    def pin(self, reader: int, index: int, unasked: bool = False) -> None:
        """`reader` reads buffer `index` from now on; `unasked`: its old buffer also stays pinned until it acknowledges."""
        last = self._pinned.get(reader)
        if self._left:
            self._let_go(self._left, reader)
        self._pinned[reader] = index
        self._readers[index] += 1
        if last is None:
            return
        if unasked or self._late:
            self._left[reader] = last
        else:
            self._readers[last] -= 1

    def release(self, reader: int) -> None:
        self._let_go(self._pinned, reader)
        self._let_go(self._left, reader)

    def _let_go(self, pins: dict[int, int], reader: int) -> None:
        index = pins.pop(reader, None)
        if index is not None:
            self._readers[index] -= 1

    def release_all(self) -> None:
        for reader in list(self._pinned):
            self.release(reader)

    def turn(self) -> None:
        """No worker reads anything, and nobody else the current buffer, so that the next version may be written there."""
        for worker in self.read_by_workers:
            self.release(worker)
        if self.is_pinned(self.current):
            index = self.spare()
            self.buffers[index].copy_from(self.buffers[self.current])
            self.current = index

    def index_of(self, reader: int) -> int | None:
        """The buffer that it reads; None if it reads none."""
        return self._pinned.get(reader)

    @property
    def read_by_workers(self) -> dict[int, int]:
        """The buffer that each worker reads; other readers have numbers below 0."""
        return {reader: index for reader, index in self._pinned.items() if reader >= 0}

    def read_by(self, worker: int) -> list[int]:
        """The buffers that it may read, the older one first."""
        return [pins[worker] for pins in (self._left, self._pinned) if worker in pins]

    @property
    def readers(self) -> set[int]:
        """Who reads the current buffer."""
        pins = (*self._pinned.items(), *self._left.items())
        return {reader for reader, index in pins if index == self.current}

    def is_pinned(self, index: int) -> bool:
        return self._readers[index] > 0

    def of(self, reader: int) -> Arena:
        """The version that its last contribution was computed from."""
        return self.buffers[self._left.get(reader, self._pinned[reader])]

    def spare(self, taken: int | None = None) -> int:
        """A buffer that is neither pinned nor current, nor `taken`."""
        for index, readers in enumerate(self._readers):
            if readers == 0 and index not in (self.current, self.lasting, taken):
                return index
        raise AssertionError("the ring has two buffers more than it has readers")


class Step(Protocol):
    """What makes the next version; `one_pass`: line by line of memory."""

    @property
    def one_pass(self) -> bool: ...


class Publisher:
    """Shows the current version itself. Where a round has everybody who reads it, and `in_place` allows, the next one is written
    there: a fifth faster."""

    writes = False
    """Whether what is shown is not the current version itself, which changes in place, but made of it."""

    def __init__(self, versions: Versions, tables: Tables | None, in_place: bool = False) -> None:
        self.versions = versions
        self._tables = tables
        self.in_place = in_place

    def next(self, fold: Fold, step: Step) -> int:
        """The buffer that the next version goes into."""
        if self.in_place and step.one_pass and self.versions.readers <= {one.worker for one in fold.members}:
            return self.versions.current
        return self.versions.spare()

    def _next_in_place(self) -> int:
        """The current buffer, unless it is to stay as it is."""
        return self.versions.current if self.versions.current != self.versions.lasting else self.versions.spare()

    def made(self, index: int) -> None:
        """The next version is there."""
        self.versions.current = index

    def rewritten(self) -> None:
        """It was written into once more."""

    def publish(self, reader: int, unasked: bool = False, part: int = ALL_PARTS) -> int:
        """Pin the buffer `reader` is to take this part of the model from (`unasked`: beside the one it reads until it knows); its
        index."""
        self.versions.pin(reader, self.versions.current, unasked)
        if self._tables is not None:
            self._tables.read(reader)
        return self.versions.current

    def reads(self, reader: int, buffers: Sequence[int]) -> None:
        """At a standby: it reads what is in these, the older one first."""
        for place, index in enumerate(buffers):
            self.versions.pin(reader, index, unasked=place > 0)

    def published(self, reader: int, index: int, part: int = ALL_PARTS) -> None:
        """Buffer `index` was made for `reader` to take this part from: pin it."""
        raise AssertionError("what is shown is the version itself")

    def whole(self, reader: int) -> int:
        """Pin a buffer with the global parameters as they are; its index."""
        self.versions.pin(reader, self.versions.current)
        return self.versions.current

    def pinned_whole(self, reader: int, index: int) -> None:
        """Buffer `index` was made for `reader` with them: pin it."""
        raise AssertionError("what is shown is the version itself")

    def forget(self, reader: int) -> None:
        """It reads nothing any more."""
        self.versions.release(reader)

    def begin_anew(self) -> None:
        """As after a restore: nobody reads anything."""
        self.versions.release_all()


class LookingAhead(Protocol):
    """What knows about where the version will be, of those who are `live` (`plesio.memory.momenta`)."""

    live: set[int]
    ready: Any

    def ahead(self, free: int) -> tuple[int, bool]: ...


class Ahead(Publisher):
    """Shows the parameters about where they will be. The master copy, in the ring's current buffer, is never published itself."""

    writes = True

    def __init__(self, momenta: LookingAhead, versions: Versions, tables: Tables | None, after: Applied | None) -> None:
        super().__init__(versions, tables)
        self._momenta = momenta
        self._after = after

    def next(self, fold: Fold, step: object) -> int:
        versions = self.versions
        return versions.current if versions.lasting is None else self._next_in_place()

    def rewritten(self) -> None:
        self._momenta.ready = None  # it was of the weights before

    def publish(self, reader: int, unasked: bool = False, part: int = ALL_PARTS) -> int:
        assert not unasked, "cancellation needs rounds, and rounds do not look ahead"
        momenta, versions = self._momenta, self.versions
        momenta.live.add(reader)
        index, elsewhere = momenta.ahead(versions.spare())
        out, master = versions.buffers[index], versions.buffers[versions.current]
        if self._after is not None and elsewhere:  # else it is the master copy
            self._after(out)
        if master.layout.buffer_segments:
            out.copy_from(master, Kind.BUFFER)
        if self._tables is not None:
            self._tables.bring_up(index, master)
            self._tables.read(reader)
        versions.pin(reader, index)
        return index

    def reads(self, reader: int, buffers: Sequence[int]) -> None:
        self._momenta.live.add(reader)
        super().reads(reader, buffers)

    def published(self, reader: int, index: int, part: int = ALL_PARTS) -> None:
        self._momenta.live.add(reader)
        self._momenta.ready = None
        self.versions.pin(reader, index)

    def whole(self, reader: int) -> int:
        versions = self.versions
        versions.release(reader)
        self._momenta.ready = None
        index, master = versions.spare(), versions.buffers[versions.current]
        versions.buffers[index].copy_from(master, Kind.TRAINED, Kind.FROZEN, Kind.BUFFER)
        if self._tables is not None:
            self._tables.bring_up(index, master)
        versions.pin(reader, index)
        return index

    def pinned_whole(self, reader: int, index: int) -> None:
        self.versions.release(reader)
        self._momenta.ready = None
        self.versions.pin(reader, index)

    def forget(self, reader: int) -> None:
        self._momenta.live.discard(reader)
        super().forget(reader)

    def begin_anew(self) -> None:
        super().begin_anew()
        self._momenta.ready = None
        self._momenta.live.clear()
