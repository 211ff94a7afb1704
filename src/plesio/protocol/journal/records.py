"""What a journal holds, and its bytes.

    journal = MAGIC, record (the head), record, record, ...
    record  = length (4 bytes), checksum (4 bytes), body

The frame's numbers are little-endian. The head's body is the byte HEAD and a msgpack map, to which fields with a default may be
added. Other bodies are msgpack arrays: a letter, and the fields of the struct below that it stands for. In a `Decision` are the
events and effects themselves (`plesio.core.events`), each an array of the same kind. Whatever of them changes is a new `FORMAT`.
Workers are below 65,536; versions and their checksums below 2**64.

The checksum is the low half of xxh3-64 over the body, seeded with the record's place in the file: a record that was
moved, repeated or left over from an older file is as wrong as one with a flipped bit, and after damage the next whole
record is found by trying every byte.
"""

from __future__ import annotations

from struct import Struct
from typing import Annotated, Any

import msgspec
from xxhash import xxh3_64_intdigest

from plesio.core.events import Discard, Event, Evict, Fold
from plesio.errors import ConfigurationError

FILE_NAME = "journal.bin"
"""The journal's name in a run folder."""
MAGIC = b"\x89plesio\n"
HEAD = b"\1"
FORMAT = 13
RECORD_BYTES_MAX = 1 << 22
"""Bounds what a damaged length can make a reader do; a fold of 150,000 contributions is below it."""
FRAME = Struct("<II")
BEGINS = "begins at "
"""The first words of the first note in the journal of a run that goes on otherwise than before: with which checkpoint."""
ELSEWHERE = "worker {} is on another host"
"""The note before a worker of another host joins a run that has phases: what its optimizer holds cannot be had."""
ISLANDS = "each worker is "
"""What a note begins with, in the beginning of a journal of workers that are several processes."""
Few = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


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


class Decision(msgspec.Struct, frozen=True, array_like=True, tag="D", gc=False):
    """What the sequencer was told, and what it decided. Of ticks only those that led to something are kept.

    Args:
        event: what it was told at `time_s`.
        effects: of what was to be done, in order, what became of contributions, and who was evicted.
        checksums: of (a part of) the version that each fold made.
        loss: what the worker who pushed last logged.
    """

    time_s: float
    event: Event
    effects: tuple[Fold | Discard | Evict, ...] = ()
    checksums: tuple[int, ...] = ()
    loss: float | None = None

    @property
    def folds(self) -> list[Fold]:
        return [effect for effect in self.effects if isinstance(effect, Fold)]


class Noted(msgspec.Struct, frozen=True, array_like=True, tag="N", gc=False):
    """An incident in words."""

    time_s: float
    worker: int | None
    text: str


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag="R", gc=False):
    """The run went on from a checkpoint of `version`: nobody is a member, what was not folded is forgotten. `held`: the workers
    that go on with what they held of their own."""

    time_s: float
    version: int
    held: tuple[int, ...] = ()


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="E", gc=False):
    """The run ended in order at `version`; `weights_hash` is of all its weights."""

    time_s: float
    version: int
    weights_hash: str


Record = Decision | Noted | Resumed | Ended

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder[Record](Record).decode


def frame_header(body: bytes, position: int) -> bytes:
    """What stands before `body` in the record that begins at byte `position`."""
    return FRAME.pack(len(body), xxh3_64_intdigest(body, position) & 0xFFFFFFFF)


def decode_head(body: bytes) -> JournalHead:
    """The head with this body; JournalError: another format; ValueError, KeyError, TypeError, MsgspecError: no head."""
    if not body.startswith(HEAD):
        raise ValueError(f"the first record begins with {body[:1]!r}, not as a head")
    format = msgspec.msgpack.decode(body[1:])["format"]
    if format != FORMAT:
        raise JournalError(f"it is of format {format}, and this plesio reads {FORMAT}: use the plesio that wrote it")
    return msgspec.msgpack.decode(body[1:], type=JournalHead)
