"""A worker's places at all table servers: keys are written there, rows are read, and gradients are written beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plesio.protocol.rows import RowsRequest
from plesio.tables.spec import RowSGD, TableSpec
from plesio.tables.window import Rows
from plesio.transport.row_slots import RowSlots
from plesio.worker.row_sources import Copying, Pulling

LR = 0.5
SPEC = TableSpec("ids", 2, RowSGD(LR), 0.1, 0)


def _waits(*_: object) -> None:
    raise AssertionError("a simulated worker does not wait: it is told")


class Desk:
    """Those of `reader`, by the sources that real workers use."""

    def __init__(self, slots: Sequence[RowSlots], reader: int) -> None:
        kind = Pulling if len(slots) == 1 else Copying
        self._source = kind(slots, reader, 0, _waits)
        self._slots, self._reader = slots, reader

    def ask(self, number: int, keys: Sequence[int], start: int, ahead: bool, serial: int) -> RowsRequest:
        """Write keys behind the first `start`; what to send for their rows."""
        wanted = self._source.put(np.array(keys, np.int64), start, number)
        return RowsRequest(number, tuple(wanted), ahead, serial)

    def has(self, request: RowsRequest) -> bool:
        """Whether all servers have laid these rows."""
        return all(one.has_served(self._reader, request) for one in self._slots)

    def take(self, number: int, count: int, before: Rows | None) -> Rows:
        """The first `count` rows of a contribution."""
        self._source.number = number
        return self._source.rows(count, before)

    def give(self, number: int, rows: Rows, gradients: NDArray[np.float32], touched: NDArray[np.uint8]) -> None:
        """The gradients of a contribution's rows."""
        self._source.number = number
        rows.gradients[:], rows.touched[:] = gradients, touched
        self._source.take(rows)
