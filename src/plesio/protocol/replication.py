"""What a head and its standby say to each other, on one connection.

| who     | says         | when                                                                                          |
| ------- | ------------ | --------------------------------------------------------------------------------------------- |
| head    | Challenge    | first                                                                                         |
| standby | StandsBy     | then                                                                                          |
| head    | Followed, or Refused | then: what the run is like, and how it stands                                         |
| head    | File         | with its bytes: a checkpoint's files, and the journal so far                                  |
| head    | Came, Did    | then: each contribution with its tensors, and each turn of the server that did something      |
| head    | RowsCame     | in between: rows of tables that are about to step                                             |
| standby | Has          | how much of that it has                                                                       |
| head    | Followed, File | in place of Came, RowsCame and Did: to a standby that takes a version every so many         |
| head    | Over         | last: the run ended, and nobody is to go on with it                                           |
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from plesio.core.events import Fold, Forget, Hold, Share, Show
from plesio.protocol.headship import Place
from plesio.protocol.remote import Terms
from plesio.protocol.worker import Contribution, Hello

Effect = Hold | Fold | Forget | Share | Show
"""What a memory does."""


class Challenge(msgspec.Struct, tag=True, frozen=True):
    """Prove that you know the token of standbys."""

    nonce: bytes


class StandsBy(msgspec.Struct, tag=True, frozen=True):
    """`who`: its host and process, for messages; `plesio`, `protocol`: its versions; `name`: by which it votes, and is elected;
    `place`: where others find it; `every`: it takes a version every so many, and not the log (0)."""

    who: str
    plesio: str
    protocol: int
    name: Annotated[int, msgspec.Meta(ge=0)]
    place: Place
    proof: bytes
    every: Annotated[int, msgspec.Meta(ge=0)] = 0


class Followed(msgspec.Struct, tag=True, frozen=True):
    """`term`: of the head; `hello`: the first worker's; `settings`: of the run, beside its `terms`; `places`: by name, of all who
    may lead. First come so many `files`, then the log from byte `begins`. The run has so many `workers`, which `read` these
    buffers, and whose `optimizers` have these settings."""

    term: int
    terms: Terms
    settings: dict[str, Any]
    places: dict[int, Place]
    hello: Hello
    begins: int
    workers: int
    read: dict[int, list[int]]
    optimizers: dict[int, bytes]
    files: int


class Refused(msgspec.Struct, tag=True, frozen=True):
    """It cannot stand by, and why."""

    why: str


class File(msgspec.Struct, tag=True, frozen=True):
    """With its bytes."""

    name: str
    nbytes: Annotated[int, msgspec.Meta(ge=0)]


class Came(msgspec.Struct, tag=True, frozen=True):
    """With the tensors of the contribution."""

    worker: Annotated[int, msgspec.Meta(ge=0)]
    made: Contribution


class RowsCame(msgspec.Struct, tag=True, frozen=True):
    """Of contribution `number` of `worker`, so many rows of the table of this number: with their keys, their gradients, and
    which of them have one."""

    worker: Annotated[int, msgspec.Meta(ge=0)]
    number: int
    table: Annotated[int, msgspec.Meta(ge=0)]
    count: Annotated[int, msgspec.Meta(ge=1)]


class Did(msgspec.Struct, tag=True, frozen=True):
    """A turn of the server is over. `journal`: what that was told. Of a new `version` there is the checksum of (a part of) it and
    the `manifest`: what a checkpoint would say beside tensors. `rows`: the checksum of those that its fold stepped; 0: of none,
    or of several folds."""

    effects: tuple[Effect, ...]
    journal: bytes
    version: int = 0
    checksum: int = 0
    manifest: bytes = b""
    rows: int = 0


class Has(msgspec.Struct, tag=True, frozen=True):
    """All up to this byte of the log."""

    up_to: int


class Over(msgspec.Struct, tag=True, frozen=True):
    """The run ended, well or by an error, and everything is written."""


FromStandby = StandsBy | Has
FromHead = Challenge | Followed | Refused | File | Came | RowsCame | Did | Over


# Between the server and the standbys' process


class StateWanted(msgspec.Struct, tag=True, frozen=True):
    """The standbys' process to the server: write down how the run stands, in this folder, and log what follows; once there is
    version `after`."""

    folder: str
    after: int = 0


class StateWritten(msgspec.Struct, tag=True, frozen=True):
    """The server to the standbys' process, the first time with the log's descriptors: what is in this folder, as in `Followed`.
    `journal`: that, and up to where; `why_not`: there is no state."""

    folder: str
    begins: int = 0
    hello: Hello | None = None
    read: dict[int, list[int]] = {}
    optimizers: dict[int, bytes] = {}
    journal: str = ""
    position: int = 0
    workers: int = 0
    version: int = 0
    why_not: str = ""
