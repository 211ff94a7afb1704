"""What the evaluator and the server tell each other. Both are on one host: the evaluator maps the ring of versions.

Rows of tables it asks for as a worker does (`RowsRequest`, `RowsServed`), while it judges. It says when it is done (`Judged`).
"""

from __future__ import annotations

import msgspec

from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.tables.spec import TableSpec
from plesio.tensors.arena import Lies
from plesio.tensors.model import Described


class SnapshotRequest(msgspec.Struct, tag=True, frozen=True):
    """The evaluator to the server: a consistent snapshot, please; the one before is done with."""


class Judged(msgspec.Struct, tag=True, frozen=True):
    """The evaluator to the server: it reads no more rows of tables for the last snapshot."""


class Snapshot(msgspec.Struct, tag=True, frozen=True):
    """The server to the evaluator, the first time with the model and the ring's descriptor; with those of the rows' places at
    each of the `servers`, if the model has `tables`: the evaluator's are those of `reader`. Several servers ring a bell, whose
    descriptor is the last."""

    lies: Lies
    time_s: float
    version: int
    samples: int
    final: bool
    model: Described | None = None
    structure: bytes = b""
    tables: tuple[TableSpec, ...] = ()
    reader: int = 0
    servers: int = 1


Asked = SnapshotRequest | RowsRequest | Judged
Told = Snapshot | RowsServed
