"""Where a reader and the server lay rows of tables for each other.

A reader writes keys and asks. The server lays the values beside them, in the same order. The gradients go back in that order,
too, so that no key travels twice: the server knows which rows it gave. A reader has two places for contributions, by turns: while
one is on its way, the rows of the next one come. In a third it has what it only reads.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from rich.filesize import decimal

from plesio.errors import ConfigurationError, DeadlineError, ModelMismatchError, SharedMemoryError
from plesio.protocol.rows import RowsRequest
from plesio.system.memory import SharedBlock, anonymous_file
from plesio.tables.spec import TableSpec
from plesio.tensors.arena import PAGE

MOST = 1 << 20
"""Distinct rows of one table in one contribution, at most. The file is sparse, and takes what was written."""
PLACES = 3


class Laid(NamedTuple):
    """One table's rows in one place: `keys`, int64; `values` and `gradients`, float32, (rows, dim); `touched`, uint8: whether
    there is a gradient."""

    keys: NDArray[np.int64]
    values: NDArray[np.float32]
    gradients: NDArray[np.float32]
    touched: NDArray[np.uint8]

    @classmethod
    def empty(cls, count: int, dim: int) -> Laid:
        """Memory of their own for so many rows to step, which need no values."""
        gradients = np.empty((count, dim), np.float32)
        return cls(np.empty(count, np.int64), gradients[:0], gradients, np.empty(count, np.uint8))

    @property
    def stepping(self) -> list[memoryview]:
        """The bytes that are needed to step them."""
        return [one.reshape(-1).view(np.uint8).data for one in (self.keys, self.gradients, self.touched)]

    def rows(self, begin: int, end: int) -> Laid:
        """Some of them."""
        some = slice(begin, end)
        return Laid(self.keys[some], self.values[some], self.gradients[some], self.touched[some])


class RowSlots:
    """The places of some `readers`, in memory that they share with the server.

    >>> from plesio.tables.spec import RowSGD, TableSpec
    >>> slots = RowSlots.create([TableSpec("ids", 2, RowSGD(0.1), 0.1, 0)], readers=1)
    >>> slots.of(0, 7, 0).keys[:2] = 5, 6
    >>> slots.of(0, 9, 0).keys[:2].tolist(), slots.of(0, 8, 0).keys[:2].tolist()
    ([5, 6], [0, 0])

    A server that is a process of its own says there, too, which request it has `served` last in a place, by its `serial`.
    """

    def __init__(self, block: SharedBlock, specs: Sequence[TableSpec], readers: int) -> None:
        self.specs, self.readers = tuple(specs), readers
        self._block = block
        memory = block.memory.numpy()
        self.served = memory[: 8 * readers * PLACES].view(np.int64).reshape(readers, PLACES)
        ends = np.cumsum([_nbytes(spec) for spec in self.specs] * (readers * PLACES))
        parts = np.split(memory[_nbytes_of((), readers) :], ends[:-1])
        self._laid = [_laid(spec, part) for spec, part in zip(self.specs * (readers * PLACES), parts, strict=True)]

    @classmethod
    def create(cls, specs: Sequence[TableSpec], readers: int) -> RowSlots:
        """Sparse memory: it takes what is written, and how much that will be nobody knows."""
        fd, nbytes = anonymous_file(0, "rows of tables on their way"), _nbytes_of(specs, readers)
        try:
            os.ftruncate(fd, nbytes)
            return cls.attach(fd, specs, readers)
        except (OSError, OverflowError) as error:
            raise SharedMemoryError(
                f"{len(specs)} tables need {decimal(nbytes)} of address space, and this process cannot have it ({error})"
            ) from error

    @classmethod
    def attach(cls, fd: int, specs: Sequence[TableSpec], readers: int) -> RowSlots:
        """The same places, in another process; it takes the descriptor over."""
        return cls(SharedBlock(fd, _nbytes_of(specs, readers)), specs, readers)

    @property
    def fd(self) -> int:
        return self._block.fd

    @property
    def nbytes(self) -> int:
        """How much memory they take so far."""
        return 512 * os.fstat(self.fd).st_blocks

    def close(self) -> None:
        self._block.close()

    def of(self, reader: int, number: int, table: int) -> Laid:
        """Where rows of `table` lie for contribution `number` of `reader`; 0: for what it only reads."""
        return self._laid[(reader * PLACES + place_of(number)) * len(self.specs) + table]

    def has_served(self, reader: int, request: RowsRequest) -> bool:
        """Whether the rows lie there that `reader` asked for."""
        return bool(self.served[reader, place_of(request.number)] == request.serial)

    def note_served(self, reader: int, request: RowsRequest) -> None:
        """They do."""
        self.served[reader, place_of(request.number)] = request.serial


def wait_served(
    slots: Sequence[RowSlots], reader: int, request: RowsRequest, bell: int, other: int, timeout_s: float
) -> bool:
    """Wait until each of several servers has served `request`; False if there is something to read from `other` before.

    Raises:
        DeadlineError: it took too long.
    """
    end_s = time.monotonic() + timeout_s
    poller = select.poll()
    for descriptor in (bell, other):
        poller.register(descriptor, select.POLLIN)
    while late := [server for server, one in enumerate(slots) if not one.has_served(reader, request)]:
        ready = {descriptor for descriptor, _ in poller.poll(1000 * max(0.0, end_s - time.monotonic()))}
        if bell in ready:
            os.eventfd_read(bell)
        elif ready:
            return False
        elif time.monotonic() > end_s:
            which = ", ".join(f"table server {server}" for server in late)
            which = f"the server, or {which}" if len(late) == len(slots) else which
            raise DeadlineError(f"waited {timeout_s:g} s for rows of tables from {which}: nothing came")
    return True


def place_of(number: int) -> int:
    """Which of a reader's places is that of contribution `number`."""
    return 1 + number % 2 if number else 0


def check_room(spec: TableSpec, at: int, count: int) -> None:
    """Raise `ConfigurationError` where `count` rows from the `at`th on have no room in a place."""
    if at < 0 or count < 0 or at + count > MOST:
        raise ConfigurationError(
            f"a contribution wants {at + count:,} distinct rows of table {spec.name!r}, and has room for {MOST:,}; exchange "
            "after fewer steps, take smaller batches, or look up under torch.no_grad() what is not trained"
        )


def check_same(wanted: Sequence[TableSpec], got: Sequence[TableSpec], worker: int, reference: int) -> None:
    """Raise `ModelMismatchError` if worker `worker` does not have the tables that worker `reference` has."""
    for one, other in zip_longest(wanted, got):
        if one is None or other is None or replace(one, seed=other.seed) != other:  # the first worker's seed counts
            raise ModelMismatchError(
                f"worker {worker} does not have the same tables as worker {reference}: {other or 'no more'} in place of "
                f"{one or 'no more'}; build the model the same way on every worker"
            )


def _nbytes_of(specs: Sequence[TableSpec], readers: int) -> int:
    served = -(-8 * readers * PLACES // PAGE) * PAGE
    return served + readers * PLACES * sum(map(_nbytes, specs))


def _nbytes(spec: TableSpec) -> int:
    return -(-MOST * (8 + 2 * 4 * spec.dim + 1) // PAGE) * PAGE


def _laid(spec: TableSpec, memory: NDArray[np.uint8]) -> Laid:
    ends = MOST * np.cumsum([8, 4 * spec.dim, 4 * spec.dim, 1])
    keys, values, gradients, touched, _ = np.split(memory, ends)
    shape = MOST, spec.dim
    return Laid(
        keys.view(np.int64), values.view(np.float32).reshape(shape), gradients.view(np.float32).reshape(shape), touched
    )
