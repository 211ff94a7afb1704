"""How a process that somebody else started becomes a worker: it knocks, and is given a seat or told why not.

| a worker says | when                                               | and awaits                        |
| ------------- | -------------------------------------------------- | --------------------------------- |
| Knock         | first on each connection                           | Seated, or Refused                |
| Resume        | first on a connection that takes a lost one's place | Resumed, or Refused               |
| Parted        | last, once all that it said has come               | nothing                           |

In between it says what any worker says (`plesio.protocol.worker`, `plesio.protocol.launcher`). Between hosts its proxy passes
that on, or, where it may not come then, says Refused and hangs up.

A worker may be several processes (an island). The first of them, the leader, knocks as any worker does, and the others show its
ticket. Each has a proxy of its own, which has the run's memory; those of the others take Holds, Put and Get.

A table server knocks the same way. Then it says what is in `plesio.protocol.table_server`, until it is told Parted: the run is
over.
"""

from __future__ import annotations

from typing import Any

import msgspec

from plesio.protocol.launcher import Failed, Finished, LoggedByWorker, StopRequest, Visited
from plesio.tensors.region import Region

PROTOCOL = 7
"""The version of what is said between hosts."""
NO_TICKET = bytes(16)
"""What a newcomer shows."""


class Terms(msgspec.Struct, frozen=True):
    """What a worker has to know of its run. `seats`: for how many workers memory is laid out; `name`, `strategy`: as
    `Strategy.from_data` takes them; `trusts`: the head takes the structure of its model, which is code; `lenient`:
    the run goes on without a worker that raises; `stealing`: fast workers take more of the data;
    `servers`: hold the rows of tables; `by_round`: see `plesio.launch.job.Job`; `readers`: the port at
    which the run is read, if it is; `standby`: its workers vote on who is head."""

    workers: int
    seats: int
    seed: int
    timeout_s: float
    name: str
    strategy: dict[str, Any]
    evaluates: bool
    trusts: bool = False
    lenient: bool = False
    stealing: bool = True
    servers: int = 1
    by_round: bool = False
    readers: int = 0
    standby: bool = False


class Knock(msgspec.Struct, tag=True, frozen=True):
    """A worker: may I take part?

    `who`: its host and process, for messages; `plesio`, `protocol`: its versions; `rank`: the seat it would like, or -1;
    `strategy` (its name, and what `as_data` gives), `options`: what the run has to be like, as far as the worker was told;
    `holds_rows`: it is a table server; `ranks`: so many processes are this worker, of which it is the `place`-th; `leader`: the
    ticket of the first of them, if it is another.
    """

    who: str
    plesio: str
    protocol: int = PROTOCOL
    rank: int = -1
    strategy: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    holds_rows: bool = False
    ranks: int = 1
    place: int = 0
    leader: bytes = b""


class Resume(msgspec.Struct, tag=True, frozen=True):
    """A worker on a new connection: so many frames of the old one came."""

    received: int


class Parted(msgspec.Struct, tag=True, frozen=True):
    """A worker, or a table server's proxy and the launcher to it: nothing follows, and nobody need wait for me."""


class Seated(msgspec.Struct, tag=True, frozen=True):
    """A worker has a seat, or a table server the place of that number; `ticket` is what it shows when it loses the connection."""

    worker: int
    incarnation: int
    ticket: bytes
    terms: Terms


class Holds(msgspec.Struct, tag=True, frozen=True):
    """A rank of an island to its proxy: the part that is its own of each tensor."""

    part: tuple[Region, ...]


class Put(msgspec.Struct, tag=True, frozen=True):
    """With the rank's part of a contribution; or, not for the `slot`, of the `copy`-th of what training begins with."""

    slot: bool = True
    copy: int = 0


class Get(msgspec.Struct, tag=True, frozen=True):
    """Its part of the version in that buffer; `all`: also of what never moves."""

    buffer: int
    all: bool


class Pull(msgspec.Struct, tag=True, frozen=True):
    """A worker to its proxy: what moves of the version that the last answer named, which came unasked and without."""


class LineResumed(msgspec.Struct, tag=True, frozen=True):
    """A proxy on a new connection: so many frames of the old one came."""

    received: int


class SeatRefused(msgspec.Struct, tag=True, frozen=True):
    """No seat (any more), and why; `kind` is the name of an error class. `for_now`: perhaps only until the head notices that
    somebody has left. A proxy tells the launcher, too."""

    kind: str
    why: str
    for_now: bool = False


FromNewcomer = Knock | Resume | Parted
ToNewcomer = Seated | LineResumed | SeatRefused | Parted
ToLauncher = LoggedByWorker | Visited | StopRequest | Finished | Failed
"""What a worker says to the launcher, perhaps by its proxy."""


# Between the launcher and its own processes


class Away(msgspec.Struct, tag=True, frozen=True):
    """A proxy to the launcher: the worker's connection is lost, or (not `is_away`) there is one again."""

    is_away: bool


class SeatGiven(msgspec.Struct, tag=True, frozen=True):
    """The launcher to a proxy, with descriptors of the worker's line (server, push, answer), or a table server's: this is your
    seat."""

    seated: Seated


class Reconnected(msgspec.Struct, tag=True, frozen=True):
    """The launcher to a proxy, with a descriptor: your worker, on a new connection."""


FromProxy = Knock | Away | SeatRefused | LoggedByWorker | Visited | StopRequest | Finished | Failed
ToProxy = SeatGiven | SeatRefused | Reconnected | Parted
