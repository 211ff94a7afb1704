"""Where a table of a model has its rows from in a run: the reader's places at the server, or at several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plesio.tables import add_at, deal
from plesio.tables.window import Rows, roomy
from plesio.transport.row_slots import Laid, RowSlots, check_room

Wanted = Sequence[tuple[int, int]]
"""Where keys begin in a place, and how many there are, of each server."""
Ask = Callable[[int, Wanted, int], object]
"""Has rows of a table laid, for a contribution."""


class Pulling:
    """Rows of `table` where they lie in `reader`'s place at the one server, for contribution `number`. `ask` returns when
    they are there."""

    def __init__(self, slots: Sequence[RowSlots], reader: int, table: int, ask: Ask) -> None:
        self._slots, self._reader, self._table, self._ask = slots, reader, table, ask
        self.number = 0

    def pull(self, keys: NDArray[np.int64], before: Rows | None) -> Rows:
        start = len(before.values) if before is not None else 0
        self._ask_for(keys, start, self.number)
        return self.rows(start + len(keys), before)

    def read(self, keys: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        self._ask_for(keys, 0, 0)
        self._gather(out, 0, 0)

    def _ask_for(self, keys: NDArray[np.int64], at: int, number: int) -> None:
        wanted = self.put(keys, at, number)
        torch.clear_autocast_cache()  # as where workers take turns in a thread: parameters are cast anew behind it, everywhere
        self._ask(self._table, wanted, number)

    def _laid(self, number: int, server: int = 0) -> Laid:
        return self._slots[server].of(self._reader, number, self._table)

    # What differs where rows are copied

    def put(self, keys: NDArray[np.int64], at: int, number: int) -> Wanted:
        """Write keys, behind the first `at`, where the server finds them."""
        check_room(self._slots[0].specs[self._table], at, len(keys))
        self._laid(number).keys[at : at + len(keys)] = keys
        return ((at, len(keys)),)

    def rows(self, count: int, before: Rows | None = None) -> Rows:
        """The first `count` rows in the place, untouched but for those that were there `before`."""
        _, values, gradients, touched = self._laid(self.number).rows(0, count)
        touched[len(before.values) if before is not None else 0 :] = 0
        return Rows(values, gradients, touched)

    def _gather(self, out: NDArray[np.float32], start: int, number: int) -> None:
        """Write the values of the rows from `start` on into `out`."""
        out[start:] = self._laid(number).values[start : len(out)]

    def take(self, rows: Rows) -> None:
        """A step takes the gradients that there are."""


class Copying(Pulling):
    """The same where several servers each have the rows of some keys, or a contribution is of several steps. Rows are copied
    together in the order in which they were looked up, and their gradients back when a step takes them."""

    def __init__(self, slots: Sequence[RowSlots], reader: int, table: int, ask: Ask) -> None:
        super().__init__(slots, reader, table, ask)
        self._whose: dict[int, list[NDArray[np.int64]]] = {}  # by contribution, the positions of each server's keys
        self._room: Rows | None = None  # of the rows that were copied last

    def put(self, keys: NDArray[np.int64], at: int, number: int) -> Wanted:
        check_room(self._slots[0].specs[self._table], at, len(keys))
        if not at:
            if number:
                self._whose = {one: whose for one, whose in self._whose.items() if one >= number - 1}
            self._whose[number] = [np.empty(0, np.int64)] * len(self._slots)
        whose, wanted = self._whose[number], []
        for server, positions in enumerate(deal(keys, len(self._slots))):
            begin = len(whose[server])
            self._laid(number, server).keys[begin : begin + len(positions)] = keys[positions]
            wanted.append((begin, len(positions)))
            whose[server] = np.append(whose[server], at + positions)
        return wanted

    def rows(self, count: int, before: Rows | None = None) -> Rows:
        start = len(before.values) if before is not None else 0
        self._room = roomy(self._room, before, count, self._slots[0].specs[self._table].dim)
        rows = self._room.first(count)
        self._gather(rows.values, start, self.number)
        for server, positions in enumerate(self._whose[self.number]):
            self._laid(self.number, server).touched[np.searchsorted(positions, start) : len(positions)] = 0
        return rows

    def _gather(self, out: NDArray[np.float32], start: int, number: int) -> None:
        for server, positions in enumerate(self._whose[number]):
            begin = np.searchsorted(positions, start)
            out[positions[begin:]] = self._laid(number, server).values[begin : len(positions)]

    def take(self, rows: Rows) -> None:
        for server, positions in enumerate(self._whose[self.number]):
            taken = self._laid(self.number, server).rows(0, len(positions))
            every = np.arange(len(positions))
            add_at(taken.gradients, taken.touched, every, rows.gradients[positions], rows.touched[positions])
        rows.touched[:] = 0
