"""What those who only read a run say and are told. They contribute nothing, and no worker waits for them.

    server --versions--> readers' process --weights, rows--> readers
                         (a copy of one version)

| the readers' process | to the server  | VersionRequest: a version, please       | VersionGiven                        |
| -------------------- | -------------- | --------------------------------------- | ----------------------------------- |
| a reader             | to the process | Open: first on each connection          | Opened, or Refused                  |
|                      |                | Want: a version that is newer than mine | Given, with the weights; or Nothing |
|                      |                | WantRows: rows of a table               | RowsGiven, in pieces                |
|                      |                | Measured: what `evaluate` made of it    | Noted, or Refused                   |

With Given a reader of the same host gets the descriptor of a file in memory that nobody can write to. To another host the
weights are sent: all of them, or their packed difference to what the reader has.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from plesio.observe.standing import ReaderNow
from plesio.protocol.launcher import Evaluated
from plesio.tables.spec import TableSpec
from plesio.tensors.arena import Lies
from plesio.tensors.model import Described

PROTOCOL = 1
"""The version of what readers say."""
NO_ROWS, ALL_ROWS = -2, -1
"""In place of a clock: no rows of tables are wanted; all are."""
NAME_MAX = 100
KEYS_MAX = 1 << 17
"""Of how many keys rows are asked for at once."""
WITHIN_MAX_S = 5.0
"""How long the readers' process may wait for a version before it says that there is none. A reader then asks again."""


class VersionRequest(msgspec.Struct, tag=True, frozen=True):
    """The readers' process to the server: the next version, please; the one before is copied. With the rows of tables that
    stepped after the clock `since`."""

    since: int = NO_ROWS


class VersionGiven(msgspec.Struct, tag=True, frozen=True):
    """The server to the readers' process; the first time with the model, the ring's descriptor and the board's. Descriptors of
    files with rows follow, if any were asked for: one of each server. `clock`: how often rows have stepped; `final`: there will
    be no other."""

    lies: Lies
    time_s: float
    version: int
    samples: int
    final: bool
    clock: int = 0
    model: Described | None = None
    tables: tuple[TableSpec, ...] = ()


class Open(msgspec.Struct, tag=True, frozen=True):
    """`name`: what the page calls this reader."""

    name: Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
    plesio: str
    protocol: int = PROTOCOL


class Opened(msgspec.Struct, tag=True, frozen=True):
    """`nonce`: what `Measured` has to prove; `run`: another one where another head goes on; `torn`: workers write while a version
    is copied. To a reader of this host the descriptor of the board comes with it, for the number of the newest version."""

    strategy: str
    model: Described
    tables: tuple[TableSpec, ...]
    torn: bool
    nonce: bytes
    run: bytes


class Want(msgspec.Struct, tag=True, frozen=True):
    """A version newer than that, if there is one `within_s`. `held`: the difference to that version will do, packed by
    `codec` (`part`: of top-k); -1: the reader has none, or wants all to the last bit. `tables`: the
    rows that go with it are to follow, of these tables those that stepped after the version that is named."""

    newer_than: int = -1
    within_s: float = 0.0
    held: int = -1
    codec: str = ""
    part: float = 0.0
    tables: dict[str, int] = {}


class Given(msgspec.Struct, tag=True, frozen=True):
    """The weights of this version come with it, `packed` or as they are. `checksum`: XXH3 of what the reader has then."""

    version: int
    newest: int
    time_s: float
    samples: int
    final: bool
    checksum: int
    packed: bool = False


class Nothing(msgspec.Struct, tag=True, frozen=True):
    """There was no newer version; `final`: there will be none."""

    newest: int
    final: bool


class WantRows(msgspec.Struct, tag=True, frozen=True):
    """Rows of this table: of these `keys` (int64), or, without, those that stepped after version `since` (or before, a few)."""

    table: str
    keys: bytes | None = None
    since: int = -1


class RowsGiven(msgspec.Struct, tag=True, frozen=True):
    """Rows as they are with `version`: `keys` (int64) and their `values` (float32); and, unless it was said of which keys, the
    clock (uint32) at which each stepped last. `clock`: the table's, which has so many `rows`; `seed`: of what keys without a row
    get; `more` follow."""

    version: int
    clock: int
    rows: int
    seed: int
    keys: bytes
    values: bytes
    stamps: bytes
    more: bool


class Measured(msgspec.Struct, tag=True, frozen=True):
    """What `evaluate` measured of a version; without metrics: this reader is going to evaluate, and the run's end is to wait for
    it. `proof`: whoever says that knows the token of workers, too."""

    version: int
    time_s: float
    samples: int
    metrics: dict[str, float]
    proof: bytes


class Noted(msgspec.Struct, tag=True, frozen=True):
    """The launcher was told."""


class Refused(msgspec.Struct, tag=True, frozen=True):
    """Why not; `kind` is the name of an error class."""

    kind: str
    why: str


class ReadersNow(msgspec.Struct, tag=True, frozen=True):
    """The readers' process to the launcher, now and then: who is there."""

    readers: tuple[ReaderNow, ...]


FromReader = Open | Want | WantRows | Measured
ToReader = Opened | Given | Nothing | RowsGiven | Noted | Refused
FromReaders = ReadersNow | Evaluated
