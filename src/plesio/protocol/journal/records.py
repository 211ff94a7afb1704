"""What a journal holds, and its bytes.

    journal = MAGIC, record (the head), record, record, ...
    record  = length (4 bytes), checksum (4 bytes), body;  body = kind (1 byte), fields

All numbers are little-endian. Workers and incarnations are below 65,536; a contribution's number, steps, samples and
batches, a staleness and the versions reported at once below 2**32; versions and their checksums below 2**64.

The checksum is the low half of xxh3-64 over the body, seeded with the record's place in the file: a record that was
moved, repeated or left over from an older file is as wrong as one with a flipped bit, and after damage the next whole
record is found by trying every byte. The head is a msgpack map, to which fields with a default may be added; any other
change, a new kind too, is a new `FORMAT`.

| kind          | body after the kind                                                                             |
| ------------- | ----------------------------------------------------------------------------------------------- |
| head          | msgpack of `JournalHead`                                                                        |
| events        | time, the event's fields; Pushed: and the loss; Joined `at`: a kind of its own                  |
| fold          | version, checksum, scale, held; for each member: worker, incarnation, number, staleness, share  |
| discard       | the fields of `Discard`                                                                         |
| eviction      | time, the fields of `Evict`                                                                     |
| note          | time, worker (-1: none), text                                                                   |
| end           | time, version, hash of the weights                                                              |
| resumption    | time, version, the set of workers whose own state came back (none: nothing follows)             |

Discards and folds have no time of their own: it is that of the event or eviction before them. Ticked is kept where it
ended the grace of a round; where a tick evicted somebody, the evictions are, with its time. Of other ticks nothing is.
"""

from __future__ import annotations

from functools import partial
from struct import Struct
from typing import Annotated, Any

import msgspec
from msgspec.structs import astuple, replace
from xxhash import xxh3_64_intdigest

from plesio.core.events import (
    Abandoned,
    Discard,
    Evict,
    Fold,
    Joined,
    LeaseWanted,
    Left,
    Pushed,
    Reported,
    Scaled,
    Ticked,
    Verdict,
    Whereabouts,
)
from plesio.errors import ConfigurationError
from plesio.tensors.tensor_set import members_of, of_bits

FILE_NAME = "journal.bin"
"""The journal's name in a run folder."""
MAGIC = b"\x89plesio\n"
FORMAT = 7
RECORD_BYTES_MAX = 1 << 22
"""Bounds what a damaged length can make a reader do; a fold of 200,000 contributions is below it."""
FRAME = Struct("<II")
NAN = float("nan")

WorkerEvent = Joined | Left | Pushed | Abandoned | Reported | LeaseWanted
JournalEvent = WorkerEvent | Scaled | Ticked


class Layout:
    """The fixed part of the bodies of one kind, which is their first byte."""

    def __init__(self, kind: int, fields: str) -> None:
        packed = Struct(f"<B{fields}")
        self.kind, self.size = kind, packed.size
        self.unpack, self.unpack_from, self.body = packed.unpack, packed.unpack_from, partial(packed.pack, kind)


HEAD = 1
EVENTS: dict[type[JournalEvent | Evict], Layout] = {
    Joined: Layout(2, "dHH"),
    Left: Layout(3, "dHH?"),
    Pushed: Layout(4, "dHHIIII?d"),
    Abandoned: Layout(14, "dHHII"),
    Reported: Layout(6, "dHHII"),
    LeaseWanted: Layout(7, "dHHIIII"),
    Evict: Layout(10, "dHHd"),
    Scaled: Layout(18, "dH"),
    Ticked: Layout(19, "d"),
}
JOINED_AT = Layout(20, "dHHIII?")
"""Of a worker that goes on where it lost its seat."""
Few = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
KINDS = {layout.kind: (event, layout) for event, layout in EVENTS.items()}
FOLD, MEMBER = Layout(8, "QQd?"), Struct("<HHIId")
DISCARD = Layout(9, "HHIBII")
NOTE = Layout(11, "di")
END = Layout(12, "dQ")
RESUME = Layout(13, "dQ")


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
        platform: the machine, for people.
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
    platform: str = ""
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


class FoldedMember(msgspec.Struct, frozen=True, gc=False):
    """A contribution in a fold; see `plesio.core.events.Member`."""

    worker: int
    incarnation: int
    number: int
    staleness: int
    share: float


class Folded(msgspec.Struct, frozen=True, gc=False):
    """Version `version` was made of `members`; `checksum` is of (a part of) its bytes."""

    version: int
    checksum: int
    scale: float
    held: bool
    members: tuple[FoldedMember, ...]


class Noted(msgspec.Struct, frozen=True, gc=False):
    """An incident in words."""

    time_s: float
    worker: int | None
    text: str


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The run ended in order at `version`; `weights_hash` is of all its weights."""

    time_s: float
    version: int
    weights_hash: str


class Resumed(msgspec.Struct, frozen=True, gc=False):
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


def encode_head(head: JournalHead) -> bytes:
    return bytes([HEAD]) + msgspec.msgpack.encode(head)


def encode_event(event: JournalEvent | Evict, time_s: float, loss: float = NAN) -> bytes:
    """The body for an event; `loss` is kept with Pushed alone."""
    layout = EVENTS[type(event)]
    if type(event) is Pushed:
        return layout.body(time_s, *astuple(event), loss)
    if type(event) is Joined:
        where = (event.worker, event.incarnation)
        return layout.body(time_s, *where) if event.at is None else JOINED_AT.body(time_s, *where, *astuple(event.at))
    return layout.body(time_s, *astuple(event))


def encode_fold(fold: Fold, checksum: int) -> bytes:
    members = [MEMBER.pack(one.worker, one.incarnation, one.number, one.staleness, one.share) for one in fold.members]
    return FOLD.body(fold.version, checksum, fold.scale, fold.held) + b"".join(members)


def decode(body: bytes) -> Record:
    """The record with this body.

    Raises:
        struct.error, ValueError: it is the body of none, the head's included.

    >>> decode(encode_event(Joined(3, 1), 0.5))
    Received(time_s=0.5, event=Joined(worker=3, incarnation=1, at=None), loss=nan)
    """
    kind = body[0]
    if kind in KINDS:
        event, layout = KINDS[kind]
        _, time_s, *fields = layout.unpack(body)
        loss = fields.pop() if event is Pushed else NAN
        return Received(time_s, event(*fields), loss)
    if kind == JOINED_AT.kind:
        _, time_s, worker, incarnation, *at = JOINED_AT.unpack(body)
        return Received(time_s, Joined(worker, incarnation, Whereabouts(*at)))
    if kind == FOLD.kind:
        _, version, checksum, scale, held = FOLD.unpack_from(body)
        members = MEMBER.iter_unpack(body[FOLD.size :])
        return Folded(version, checksum, scale, held, tuple([FoldedMember(*one) for one in members]))
    if kind == DISCARD.kind:
        discard = Discard(*DISCARD.unpack(body)[1:])
        return replace(discard, verdict=Verdict(discard.verdict))
    if kind == NOTE.kind:
        _, time_s, worker = NOTE.unpack_from(body)
        return Noted(time_s, None if worker < 0 else worker, body[NOTE.size :].decode())
    if kind == END.kind:
        _, time_s, version = END.unpack_from(body)
        return Ended(time_s, version, body[END.size :].decode())
    if kind == RESUME.kind:
        _, time_s, version = RESUME.unpack_from(body)
        return Resumed(time_s, version, members_of(of_bits(body[RESUME.size :])))
    raise ValueError(f"there is no record of kind {kind}")


def decode_head(body: bytes) -> JournalHead:
    """The head with this body; JournalError: another format; ValueError, KeyError, TypeError, MsgspecError: no head."""
    if body[0] != HEAD:
        raise ValueError(f"the first record is of kind {body[0]}, not a head")
    format = msgspec.msgpack.decode(body[1:])["format"]
    if format != FORMAT:
        raise JournalError(f"it is of format {format}, and this plesio reads {FORMAT}: use the plesio that wrote it")
    return msgspec.msgpack.decode(body[1:], type=JournalHead)
