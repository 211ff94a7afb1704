"""What a message says of the tensors that travel with it, or lie in shared memory beside it."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Form(IntEnum):
    """How a segment's numbers are packed."""

    PLAIN = 0
    """As they lie in an arena (`plesio.tensors.arena`)."""


class Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stretch of the payload: how it is packed, and its bytes."""

    form: Form
    nbytes: int


Payload = tuple[Segment, ...]
"""The segments in their order. Without any, the payload is the whole arena in its plain form."""
