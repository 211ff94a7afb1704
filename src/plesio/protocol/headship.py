"""What a process that may lead (the head, a standby) and one that votes say to each other.

| who votes  | Votes: first on each connection        | what it answers: Promise, Vote, NotYou, Fenced, or a bare beat; Leaves |
| who leads  | Places: first, and when they change    | Beat, Ask; or a bare beat (`FrameKind.BEAT`), which says: I am here    |
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from plesio.core.headship import Ask, Beat, Fenced, Leaves, NotYou, Promise, Vote

Place = tuple[str, Annotated[int, msgspec.Meta(ge=0, lt=65536)]]
"""A host and a port."""


class Votes(msgspec.Struct, tag=True, frozen=True):
    """I vote by this name: that of my process, which no other has."""

    name: int


class Places(msgspec.Struct, tag=True, frozen=True):
    """`name` says it: by name, where each is that may lead."""

    name: int
    places: dict[int, Place]


ToVoter = Places | Beat | Ask
FromVoter = Votes | Promise | Vote | NotYou | Fenced | Leaves
