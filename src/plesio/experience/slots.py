"""Where the items of a queue lie: one block of shared memory.

    counters | a ticket a slot | a version a slot | of each field, a row a slot

A slot whose ticket is 0 is free. The others are numbered from 1 as they came. All is done under the queue's lock, which goes
with its process. An item comes or goes with the store of its ticket, 8 bytes, so a process may be killed at any moment:

| killed while it | before the ticket is stored | after |
| --- | --- | --- |
| puts | the slot is free: nobody reads what lies in it | the item is there |
| gets | the item is there, for somebody else | the item is lost with its process |
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from plesio.system.memory import SharedBlock

PUT, GOT, OLD, OLDEST, NEWEST, AGED, AGES, AGE_MAX = range(8)
"""What is counted, in words at the beginning."""
HEAD_BYTES = LINE = 64
"""Each part begins at a multiple of a cache line."""
Items = dict[str, torch.Tensor]


class Layout(msgspec.Struct, frozen=True):
    """`fields`: dtype and shape of each tensor of an item, by name."""

    capacity: int
    overflow: str
    fields: dict[str, tuple[torch.dtype, tuple[int, ...]]]

    def sizes(self) -> list[int]:
        """The bytes of each part."""
        rows = [dtype.itemsize * math.prod(shape) for dtype, shape in self.fields.values()]
        return [HEAD_BYTES, *(-(-self.capacity * one // LINE) * LINE for one in (8, 8, *rows))]


class Slots:
    """The slots of such a block; a new one holds zeros."""

    def __init__(self, block: SharedBlock, layout: Layout) -> None:
        self._overflow = layout.overflow
        head, tickets, versions, *rows = torch.split(block.memory, layout.sizes())
        self._counts = head.numpy().view(np.int64)
        self.tickets, self._versions = (one.numpy().view(np.int64)[: layout.capacity] for one in (tickets, versions))
        self._rows: Items = {}
        for row, (name, (dtype, shape)) in zip(rows, layout.fields.items(), strict=True):
            every = (layout.capacity, *shape)
            self._rows[name] = row[: math.prod(every) * dtype.itemsize].view(dtype).view(every)

    def put(self, item: Items, version: int) -> bool | None:
        """Whether it is in the queue; None: there is no room yet."""
        free = np.flatnonzero(self.tickets == 0)[:1]
        if not len(free):
            if self._overflow == "wait":
                return None
            if self._overflow == "drop_newest":
                self._counts[NEWEST] += 1
                return False
            free = self._oldest(1)
            self._free(free, OLDEST)
        slot = int(free[0])
        for name, value in item.items():
            self._rows[name][slot].copy_(value)
        self._versions[slot] = version
        self._counts[PUT] += 1  # before the ticket is stored, so that no two have the same
        self.tickets[slot] = self._counts[PUT]
        return True

    def take(self, n: int, version: int | None, max_age: int | None) -> Items | None:
        """The `n` oldest items; None: they are not all there yet."""
        if version is not None and max_age is not None:
            self._free(np.flatnonzero((self.tickets > 0) & (self._versions < version - max_age)), OLD)
        slots = self._oldest(n)
        if len(slots) < n:
            return None
        items = {name: rows[torch.from_numpy(slots)] for name, rows in self._rows.items()}
        if version is not None:
            ages = np.maximum(0, version - self._versions[slots])
            self._counts[AGED] += n
            self._counts[AGES] += ages.sum()
            self._counts[AGE_MAX] = max(self._counts[AGE_MAX], ages.max())
        self._free(slots, GOT)
        return items

    def stats(self) -> dict[str, float]:
        put, got, old, oldest, newest, aged, ages, age_max = self._counts.tolist()
        size = int(np.count_nonzero(self.tickets))
        lost = put - size - got - old - oldest
        dropped = {"dropped_old": old, "dropped_oldest": oldest, "dropped_newest": newest}
        aging = {"age_mean": ages / max(1, aged), "age_max": age_max}
        return {"put": put, "got": got, "size": size, **dropped, "lost": lost, **aging}

    def _oldest(self, n: int) -> NDArray[np.int64]:
        """The slots of the `n` oldest items, or of all if there are fewer."""
        taken = np.flatnonzero(self.tickets)
        return taken[np.argsort(self.tickets[taken])[:n]]

    def _free(self, slots: NDArray[np.int64], count: int) -> None:
        self.tickets[slots] = 0
        self._counts[count] += len(slots)
