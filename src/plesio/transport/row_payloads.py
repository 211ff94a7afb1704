"""Which rows of tables travel with a message between hosts, and where they lie. Both ends ask here.

| message                 | with                                                                                            |
| ----------------------- | ----------------------------------------------------------------------------------------------- |
| RowsRequest             | the keys of what is wanted                                                                      |
| RowsServed              | their values                                                                                    |
| Contribution with rows  | behind its tensors, of all rows that were asked for it: the gradients, and whether there is one |

They are sent from their places, and sent again from there. A place is written next for the contribution after the next. By then
the answer to this one has come, which acknowledges it.
"""

from __future__ import annotations

from collections.abc import Sequence

from plesio.core.events import Count
from plesio.protocol.rows import RowsRequest
from plesio.transport.row_slots import Laid, RowSlots


class RowPayloads:
    """Those of `reader`, whose places are in the `slots` of each part of the tables."""

    def __init__(self, slots: Sequence[RowSlots], reader: int) -> None:
        self.slots = slots
        self._tables = [(one, table) for one in slots for table in range(len(one.specs))]
        self._reader = reader
        self._counts: dict[int, list[int]] = {}

    def asked(self, request: RowsRequest) -> None:
        """These rows are wanted, behind those that were wanted for the same contribution."""
        if request.number:
            self._counts = {number: rows for number, rows in self._counts.items() if number >= request.number - 1}
            self._counts[request.number] = [
                at + count if count else before
                for before, (at, count) in zip(self.counts(request.number), request.wanted, strict=True)
            ]

    def forget(self) -> None:
        """Contributions are numbered anew."""
        self._counts.clear()

    def counts(self, number: int) -> list[int]:
        """How many rows of each table were asked for contribution `number`."""
        return self._counts.get(number, [0] * len(self._tables))

    def laid(self, number: int, wanted: Sequence[tuple[Count, Count]]) -> list[Laid]:
        """Where these rows lie; without tables of which there are none."""
        return [
            slots.of(self._reader, number, table).rows(at, at + count)
            for (slots, table), (at, count) in zip(self._tables, wanted, strict=False)
            if count
        ]

    def keys(self, request: RowsRequest) -> list[memoryview]:
        return [one.keys.data for one in self.laid(request.number, request.wanted)]

    def values(self, request: RowsRequest) -> list[memoryview]:
        return [one.values.data for one in self.laid(request.number, request.wanted)]

    def gradients(self, number: int) -> list[memoryview]:
        """Of contribution `number`, with the flags."""
        every = self.laid(number, [(0, count) for count in self.counts(number)])
        return [view for one in every for view in (one.gradients.data, one.touched.data)]
