"""The rows that a worker of another host asks its proxy for.

The proxy receives keys and gradients straight into the worker's place, which it shares with the server. It sends values straight
from there. While the worker computes contribution N, it may ask:

| it asks                | when                                                      | and is sent                        |
| ---------------------- | --------------------------------------------------------- | ---------------------------------- |
| for N, or (0) to read  | when its last request is answered                         | RowsServed, with values            |
| ahead, for N + 1       | once, when it has the answer to N - 1                     | nothing                            |
| ahead, nothing wanted  | when it begins with what it asked for ahead               | RowsServed, when they are there    |

So values never travel unasked: both sides might send then, and neither read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from plesio.protocol.coding import ProtocolError
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.tables.spec import TableSpec
from plesio.transport.row_payloads import RowPayloads
from plesio.transport.row_slots import MOST, RowSlots


class WorkerRows(RowPayloads):
    """Those of one worker; `bell`: which several servers of rows ring."""

    def __init__(self, slots: Sequence[RowSlots], reader: int, bell: int | None = None) -> None:
        super().__init__(slots, reader)
        self.bell = bell
        self._open: dict[bool, RowsRequest] = {}  # what is not sent; one that was asked for ahead, and one that was not
        self._fetched = self._came = False  # what was asked for ahead: by the worker; from the server

    @classmethod
    def attached(
        cls, tables: Sequence[TableSpec], descriptors: list[int], servers: int, seats: int, reader: int
    ) -> Self:
        """In the places behind the last of these descriptors; that of a bell is taken from them."""
        bell = descriptors.pop() if tables and servers > 1 else None
        places = [RowSlots.attach(one, tables, seats + 1) for one in descriptors[-servers:]] if tables else []
        return cls(places, reader, bell)

    def may_ask(self, request: RowsRequest, following: int, answers: int) -> bool:
        """Whether it may, whose contribution `following` is its next, after so many answers."""
        number, ahead = request.number, self._open.get(True)
        if request.ahead and not request.wanted:
            return ahead is not None and ahead.number == number == following and not self._fetched
        if not (self.slots and self._has_room(request)):
            return False
        if request.ahead:
            return ahead is None and number == following + 1 and following <= answers
        return False not in self._open and number in (0, following) and self.may_send(number)

    def may_send(self, number: int) -> bool:
        """Whether nothing that was asked for contribution `number` is still to come."""
        return all(one.number != number for one in self._open.values())

    def _has_room(self, request: RowsRequest) -> bool:
        """Whether these rows are behind those before, and fit in."""
        before = self.counts(request.number)
        return len(before) == len(request.wanted) and all(
            not count or (at == begin and at + count <= MOST)
            for begin, (at, count) in zip(before, request.wanted, strict=True)
        )

    def check_keys(self, request: RowsRequest) -> None:
        """Raise `ProtocolError` if a key came twice: its row would step twice."""
        for one in self.laid(request.number, [(0, count and at + count) for at, count in request.wanted]):
            keys = np.sort(one.keys)
            if (keys[1:] == keys[:-1]).any():
                raise ProtocolError("it asked for a row twice")

    def note(self, request: RowsRequest) -> None:
        """It has asked."""
        if request.wanted:
            self.asked(request)
            self._open[request.ahead] = request
        else:
            self._fetched = True

    def rung(self) -> list[RowsServed]:
        """What several servers have laid that it was not told of."""
        assert self.bell is not None, "it was rung"
        os.eventfd_read(self.bell)
        waiting = [(ahead, one) for ahead, one in self._open.items() if not (ahead and self._came)]
        laid = [ahead for ahead, one in waiting if all(slots.has_served(self._reader, one) for slots in self.slots)]
        self._came = self._came or True in laid
        return [RowsServed(ahead) for ahead in laid]

    def served(self, ahead: bool) -> None:
        """Rows lie in the place."""
        self._came = self._came or ahead

    def is_due(self, ahead: bool) -> bool:
        """Whether rows are to be sent now; `ahead`: those that were asked for so."""
        return ahead in self._open and (not ahead or (self._fetched and self._came))

    def due(self, ahead: bool) -> list[memoryview]:
        """They are sent."""
        if ahead:
            self._fetched = self._came = False
        return self.values(self._open.pop(ahead))
