"""What the evaluator and the server tell each other. Both are on one host: the evaluator maps the ring of versions."""

from __future__ import annotations

import msgspec

from plesio.tensors.arena import Lies
from plesio.tensors.model import Described


class SnapshotRequest(msgspec.Struct, tag=True, frozen=True):
    """The evaluator to the server: a consistent snapshot, please; the one before is done with."""


class Snapshot(msgspec.Struct, tag=True, frozen=True):
    """The server to the evaluator, the first time with the model and the ring's descriptor."""

    lies: Lies
    time_s: float
    version: int
    samples: int
    final: bool
    model: Described | None = None
    structure: bytes = b""
