"""What may be said over a connection, as a table: message -> when, with which bytes, and what it changes.

Whoever hears a stranger has one such table, and one loop that asks it (`plesio.launch.local.proxy`). A message that has no row
in it is none. The table of what a side says itself has the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args

import msgspec

from plesio.protocol.coding import ProtocolError, decoder_of
from plesio.protocol.launcher import Failed, Finished
from plesio.protocol.remote import FromNewcomer, Parted
from plesio.protocol.worker import Farewell
from plesio.transport.wire import Frame, FrameKind

Spans = Sequence[memoryview]


class Dialogue:
    """How far a conversation is: how often each message was `said`, by either side."""

    def __init__(self) -> None:
        self.said: Counter[type] = Counter()

    def is_over(self, kind: FrameKind) -> bool:
        """Whether nothing more may come in frames of this kind."""
        over = self.said[Finished] or self.said[Failed] or (self.said[Farewell] and kind is not FrameKind.LAUNCHER)
        return bool(over) and kind is not FrameKind.SESSION


T = TypeVar("T", bound=Dialogue)


class Route(NamedTuple, Generic[T]):
    """A row of the table.

    Attributes:
        kind: of the frames that it comes in.
        when: whether it may come now. Raises `ProtocolError` for one that cannot come at all.
        spans: the bytes that go with it, where they lie.
        then: what it changes, once it has come with all its bytes. Raises `ProtocolError` if those cannot be.
        back: the bytes that are sent back for it in a frame of kind TENSORS, if such a frame is awaited.
    """

    message: type[msgspec.Struct]
    kind: FrameKind
    when: Callable[[T, Any], object] = lambda dialogue, message: True
    spans: Callable[[T, Any], Spans] = lambda dialogue, message: ()
    then: Callable[[T, Any], Any] = lambda dialogue, message: None
    back: Callable[[T, Any], Spans] | None = None


PARTING: Sequence[Route[Any]] = [
    Route(one, FrameKind.SESSION, lambda dialogue, message: isinstance(message, Parted))
    for one in get_args(FromNewcomer)
]
"""Whoever has a seat may only part."""


class Routes(dict[type, Route[T]]):
    """The table of one side of a conversation."""

    def __init__(self, *routes: Route[T]) -> None:
        super().__init__((one.message, one) for one in routes)
        self._decoders: dict[FrameKind, Callable[[bytes], msgspec.Struct]] = {}
        for kind in {one.kind for one in routes}:
            self._decoders[kind] = decoder_of(Union[tuple(one.message for one in routes if one.kind is kind)])  # noqa: UP007

    def decoded(self, frame: Frame) -> msgspec.Struct:
        """The message in a frame; raises `ProtocolError` where none of the table's is."""
        if frame.kind not in self._decoders:
            raise ProtocolError(f"it sent a frame of kind {frame.kind.name}, which it may not")
        return self._decoders[frame.kind](frame.body)

    def into(self, dialogue: T, message: msgspec.Struct, nbytes: int) -> Spans:
        """Where the bytes belong that came with a message. Nothing changes before `note`: it may come twice.

        Raises:
            ProtocolError: it may not come now, or not with so many bytes.
        """
        route, name = self[type(message)], type(message).__name__
        if dialogue.is_over(route.kind) or not route.when(dialogue, message):
            before = ", ".join(f"{count} {one.__name__}" for one, count in dialogue.said.items())
            raise ProtocolError(f"it said {name} out of turn, after {before or 'nothing'}")
        into = route.spans(dialogue, message)
        if (expected := sum(view.nbytes for view in into)) != nbytes:
            raise ProtocolError(f"it sent {nbytes} bytes with {name}; {expected} were expected")
        return into

    def note(self, dialogue: T, message: msgspec.Struct) -> Any:
        """It was said, with all its bytes; gives what `then` does."""
        noted = self[type(message)].then(dialogue, message)
        dialogue.said[type(message)] += 1
        return noted

    def told(self, dialogue: T, message: msgspec.Struct) -> tuple[FrameKind, Spans]:
        """This side says it: the kind of its frame, and the bytes that go with it."""
        route = self[type(message)]
        spans = route.spans(dialogue, message)
        self.note(dialogue, message)
        return route.kind, spans
