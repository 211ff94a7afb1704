"""What the server tells the processes that hold the rows of tables, and what they say.

| the server    | what it does there                                                    |
| ------------- | --------------------------------------------------------------------- |
| Bells, Begin  | once, with descriptors: there are tables, and readers that are told   |
| Lay           | lays rows into a reader's slot, and rings its bell                    |
| FoldRows,     | what `plesio.memory.row_tables` says of these effects                 |
| Hold, Fold    |                                                                       |
| Reading       | keeps all rows as they are now for the last reader, or no longer      |
| Vacated       | forgets what a reader was served: another process sits there          |
| Ask           | calls a method of its `RowTables`; says Answered                      |

One on another host has a proxy beside the server, which tells it the same over a connection, with the keys and gradients that
belong to it. It answers a Lay with Served and the values. A file of rows travels as Pieces, before its Ask or Answered.
The proxy reads and writes the files of checkpoints:

| the proxy is asked     | it asks                | and                                        |
| ---------------------- | ---------------------- | ------------------------------------------ |
| restore                | begin_from(clock)      | sends the rows of that server's keys       |
| write                  | hand_over(since)       | writes the rows that come                  |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from plesio.core.events import Fold, FoldRows, Hold
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol.rows import RowsRequest
from plesio.tables.spec import TableSpec

PIECE_BYTES_MAX = 64 << 20


class Bells(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Descriptors come with it: of more readers' bells (eventfd), in their order."""


class Begin(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The descriptor of the slots of `readers` comes with it. It is `server` of so many `servers`."""

    specs: tuple[TableSpec, ...]
    readers: int
    at_once: bool
    server: int
    servers: int


class Lay(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """`request` of `reader` is to be served now: that was decided at `decided_s`, on this host's clock."""

    reader: int
    request: RowsRequest
    decided_s: float


class Reading(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The last reader, which steps nothing, begins to read, or is done: meanwhile it is given rows as they were at first."""

    begins: bool


class Vacated(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Another process sits at `reader`'s place from now on."""

    reader: int


class Ask(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Call the method `what` with `args`; a file of rows may come with it, before them."""

    what: str
    args: tuple[Any, ...]


class Answered(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What the method returned, or the `error` of the system that it raised. A descriptor comes in place of a number."""

    value: Any = None
    error: str = ""


class Stands(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """What became of its rows so far, and what it did: now and then, and before the answer to who asks. At first: it is here."""

    summaries: dict[str, RowsSummary]
    load: RowServer


class Piece(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Between hosts: so many bytes of a file come with it."""

    nbytes: Annotated[int, msgspec.Meta(ge=0, le=PIECE_BYTES_MAX)]


class ValuesServed(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Between hosts: the values of the first Lay that waits for them come with it."""


ToTableServer = Bells | Begin | Lay | FoldRows | Hold | Fold | Reading | Vacated | Ask
FromTableServer = Answered | Stands
ToFarServer = Begin | Lay | FoldRows | Hold | Fold | Reading | Vacated | Ask | Piece
FromFarServer = Answered | Stands | ValuesServed | Piece
RETURNS: dict[str, Any] = {
    **dict.fromkeys(("begin_from", "checksum", "take_checksum", "nbytes_pushed"), int),
    **dict.fromkeys(("begin_anew", "hand_over", "summaries")),
}
"""What may be asked between hosts, and what that returns; `hand_over` a file."""
