"""What a worker and the server tell each other of rows of tables, on a worker's channel (`plesio.protocol.worker`)."""

from __future__ import annotations

import msgspec

from plesio.core.events import Count


class RowsRequest(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server: rows of tables, please, for contribution `number` (0: only to read). `wanted`: of each table, where
    in its slot the keys begin, and how many there are (`plesio.transport.row_slots`); of several servers one after the other.
    `ahead`: see `plesio.core.events.RowsWanted`; the worker goes on meanwhile. A worker of another host asks again,
    with nothing `wanted`, when it needs them. `serial`: another one for each request."""

    number: Count
    wanted: tuple[tuple[Count, Count], ...]
    ahead: bool = False
    serial: Count = 0


class RowsServed(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker: the rows lie in its slot. `ahead`: those that were asked for so."""

    ahead: bool = False
