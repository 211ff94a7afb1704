"""The rows of a worker of another host: they lie in places of its own, like those that others share with the server."""

from __future__ import annotations

from collections.abc import Sequence

from plesio.protocol.rows import RowsRequest
from plesio.tables.spec import TableSpec
from plesio.transport.row_payloads import RowPayloads
from plesio.transport.row_slots import RowSlots


class RemoteRows(RowPayloads):
    """Of one worker, which asks its proxy (`plesio.launch.local.worker_rows`)."""

    def __init__(self, tables: Sequence[TableSpec], servers: int) -> None:
        super().__init__([RowSlots.create(tables, readers=1) for _ in range(servers)], 0)
        self._awaited = self._ahead = RowsRequest(0, ())

    def sent(self, request: RowsRequest) -> list[memoryview]:
        """What travels with this request."""
        if request.wanted:
            self.asked(request)
        if request.ahead and request.wanted:
            self._ahead = request
        else:
            self._awaited = self._ahead if request.ahead else request
        return self.keys(request)

    def coming(self) -> list[memoryview]:
        """Where the rows belong that come next."""
        return self.values(self._awaited)
