"""What a journal holds, and its bytes.

    journal = MAGIC, record (the head), record, record, ...
    record  = length (4 bytes), checksum (4 bytes), body;  body = kind (1 byte), fields

The frame's numbers are little-endian. The fields are a msgpack array. Workers are below 65,536; versions and their checksums
below 2**64.

The checksum is the low half of xxh3-64 over the body, seeded with the record's place in the file: a record that was
moved, repeated or left over from an older file is as wrong as one with a flipped bit, and after damage the next whole
record is found by trying every byte. The head is a msgpack map, to which fields with a default may be added; any other
change, a new kind too, is a new `FORMAT`. A run whose strategy has phases is of format `PHASED`: it may hold `Switched`. One
whose rounds are looked at, or take a least number of workers, is of format `LOOKED_AT`: it may hold `RoundBegins` and `GivenUp`.

| kind       | fields                                                                                             |
| ---------- | -------------------------------------------------------------------------------------------------- |
| head       | a map: `JournalHead`                                                                               |
| events     | time, loss (NaN if not Pushed), the event's fields                                                 |
| eviction   | time, NaN, the fields of `Evict`                                                                   |
| discard    | the fields of `Discard`                                                                            |
| others     | those of `Folded`, `Noted`, `Ended`, `Resumed`                                                     |

Discards and folds have no time of their own: it is that of the event or eviction before them. Ticked is kept where it
ended the grace of a round; where a tick evicted somebody, the evictions are, with its time. Of other ticks nothing is.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec.structs import astuple
from xxhash import xxh3_64_intdigest

from plesio.core.events import (
    Abandoned,
    Discard,
    Evict,
    GivenUp,
    Joined,
    LeaseWanted,
    Left,
    Pushed,
    Reported,
    RoundBegins,
    RowsWanted,
    Scaled,
    Switched,
    Ticked,
)
from plesio.errors import ConfigurationError

FILE_NAME = "journal.bin"
"""The journal's name in a run folder."""
MAGIC = b"\x89plesio\n"
FORMAT, PHASED, LOOKED_AT = 9, 10, 11
"""Of runs as most are; whose strategy has phases; whose rounds are looked at: a reader that knows of none must not repeat these
without."""
RECORD_BYTES_MAX = 1 << 22
"""Bounds what a damaged length can make a reader do; a fold of 150,000 contributions is below it."""
FRAME = Struct("<II")
NAN = float("nan")
BEGINS = "begins at "
"""The first words of the first note in the journal of a run that goes on otherwise than before: with which checkpoint."""
ELSEWHERE = "worker {} is on another host"
"""The note before a worker of another host joins a run that has phases: what its optimizer holds cannot be had."""
ISLANDS = "each worker is "
"""What a note begins with, in the beginning of a journal of workers that are several processes."""
Few = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]

WorkerEvent = Joined | Left | Pushed | Abandoned | Reported | LeaseWanted | RowsWanted
JournalEvent = WorkerEvent | Scaled | Switched | RoundBegins | GivenUp | Ticked


class JournalError(ConfigurationError):
    """A file that is no journal of ours, or one that cannot be read or written.

    >>> ps.replay("nowhere", train)
    Traceback (most recent call last):
        ...
    plesio.protocol.journal.records.JournalError: the journal nowhere cannot be read: No such file or directory; ...
    """


class JournalHead(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be the same for a replay to come out the same, and what to call the run.

    Args:
        strategy: its name; `fields` are its answers.
        sources: a lone worker's random sources at its beginning, packed; unset: seeded.
        stealing: whether fast workers take data laid out for others.
        workers_max: how many there may be at a time; unset: `workers`.
        silence_s: how long a worker may be silent while others wait for it.
        threads: of the server and of each worker.
        versions: of python, torch, numpy and plesio.
        cpu_capability: which kernels torch chose, such as "AVX2".
        script: the file of the training function; its path is for people, `train_hash` is what counts.
        train_hash: of that file, or of the function's code.
        torch: its settings, as `plesio.launch.torch_settings` has them.
    """

    format: int = FORMAT
    strategy: str = ""
    fields: dict[str, Any] = {}
    workers: Few = 0
    workers_max: Few | msgspec.UnsetType = msgspec.UNSET
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    sources: bytes | msgspec.UnsetType = msgspec.UNSET
    stealing: bool = False
    silence_s: float = 0.0
    threads: Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)] = 1
    versions: dict[str, str] = {}
    cpu_capability: str = ""
    script: str = ""
    train_hash: str = ""
    torch: dict[str, Any] = {}

    @property
    def seats(self) -> int:
        """How many workers there may be at a time."""
        return self.workers_max or self.workers


class Received(msgspec.Struct, frozen=True, gc=False):
    """An event that the sequencer was given, or the eviction of a worker that was silent for too long. For Pushed, `loss` is
    what the worker last logged, or NaN."""

    time_s: float
    event: JournalEvent | Evict
    loss: float = NAN


class FoldedMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A contribution in a fold; see `plesio.core.events.Member`."""

    worker: int
    incarnation: int
    number: int
    staleness: int
    share: float


class Folded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Version `version` was made of `members`; `checksum` is of (a part of) its bytes."""

    version: int
    checksum: int
    scale: float
    held: bool
    members: tuple[FoldedMember, ...]


class Noted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An incident in words."""

    time_s: float
    worker: int | None
    text: str


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The run ended in order at `version`; `weights_hash` is of all its weights."""

    time_s: float
    version: int
    weights_hash: str


class Resumed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The run went on from a checkpoint of `version`: nobody is a member, what was not folded is forgotten. `held`: the workers
    that go on with what they held of their own."""

    time_s: float
    version: int
    held: tuple[int, ...] = ()


Record = Resumed | Received | Folded | Discard | Noted | Ended


# Frames


def frame_header(body: bytes, position: int) -> bytes:
    """What stands before `body` in the record that begins at byte `position`."""
    return FRAME.pack(len(body), xxh3_64_intdigest(body, position) & 0xFFFFFFFF)


# Bodies

HEAD = 1
TIMED: dict[type[JournalEvent | Evict], int] = {
    Joined: 2,
    Left: 3,
    Pushed: 4,
    Reported: 5,
    LeaseWanted: 6,
    Abandoned: 7,
    Evict: 8,
    Scaled: 9,
    Ticked: 10,
    RowsWanted: 11,
    Switched: 12,
    RoundBegins: 13,
    GivenUp: 14,
}
"""The kinds of what is kept with its time."""
FOLD, DISCARD, NOTE, END, RESUME = 16, 17, 18, 19, 20


def _fields_of(kept: type[msgspec.Struct], *before: type) -> msgspec.msgpack.Decoder[Any]:
    """Reads an array of values `before` and of the fields of `kept`."""
    types: Any = (*before, *get_type_hints(kept).values())
    return msgspec.msgpack.Decoder(tuple[types])


_events = {kind: (event, _fields_of(event, float, float)) for event, kind in TIMED.items()}
_discard = _fields_of(Discard)
_others: dict[int, msgspec.msgpack.Decoder[Record]] = {
    kind: msgspec.msgpack.Decoder(record)
    for kind, record in {FOLD: Folded, NOTE: Noted, END: Ended, RESUME: Resumed}.items()
}
_packed = msgspec.msgpack.Encoder().encode


def body_of(kind: int, fields: object) -> bytes:
    return kind.to_bytes() + _packed(fields)


def encode_event(event: JournalEvent | Evict, time_s: float, loss: float = NAN) -> bytes:
    """The body for an event; `loss` is told with Pushed alone."""
    return body_of(TIMED[type(event)], (time_s, loss, *astuple(event)))


def decode(body: bytes) -> Record:
    """The record with this body.

    Raises:
        ValueError, MsgspecError: it is the body of none, the head's included.

    >>> decode(encode_event(Joined(3, 1), 0.5))
    Received(time_s=0.5, event=Joined(worker=3, incarnation=1, at=None), loss=nan)
    """
    kind, fields = body[0], body[1:]
    if kind in _others:
        return _others[kind].decode(fields)
    if kind in _events:
        event, decoder = _events[kind]
        known = decoder.decode(fields)
        return Received(known[0], event(*known[2:]), known[1])
    if kind == DISCARD:
        return Discard(*_discard.decode(fields))
    raise ValueError(f"there is no record of kind {kind}")


def decode_head(body: bytes) -> JournalHead:
    """The head with this body; JournalError: another format; ValueError, KeyError, TypeError, MsgspecError: no head."""
    if body[0] != HEAD:
        raise ValueError(f"the first record is of kind {body[0]}, not a head")
    format = msgspec.msgpack.decode(body[1:])["format"]
    if format not in (FORMAT, PHASED, LOOKED_AT):
        raise JournalError(
            f"it is of format {format}, and this plesio reads {FORMAT} to {LOOKED_AT}: use the plesio that wrote it"
        )
    return msgspec.msgpack.decode(body[1:], type=JournalHead)
