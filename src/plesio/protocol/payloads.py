"""Which tensors travel with a message between hosts. Both ends ask here.

| message                    | with                                                                   |
| -------------------------- | ---------------------------------------------------------------------- |
| Ready, of the first worker | the initial weights, then what the keys of the optimizer's state name  |
| Contribution               | what is trained, packed where there is a codec; tables' rows; buffers  |
| Beginning                  | all parameters                                                         |
| GoOn                       | what moves, or its packed difference; nothing if its step was cancelled |
| GoOn that begins a phase   | all parameters                                                         |
| (a frame of kind TENSORS)  | what moves                                                             |
| either, of part WORDS      | no tensors; a GoOn has the words that lie in the worker's slot         |

Of what is trained, a Contribution and a GoOn have the part of the model that they name. Rows of tables:
`plesio.transport.row_payloads`.

A rank of an island sends and takes its own part of these tensors. Of buffers that go with a Contribution the leader sends all:
other ranks have seen other data.

An answer to a cancelled step comes unasked: with tensors, both sides might send and neither read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from plesio.core.events import Verdict
from plesio.protocol.worker import Aside, Beginning, Contribution, GoOn, Hello
from plesio.strategy import Strategy
from plesio.tensors.arena import Kind, Layout
from plesio.tensors.packing import Packing
from plesio.tensors.region import Region
from plesio.tensors.rows import MOVING, spans_of

WORDS = -2
"""In place of the part of a model: an exchange of words (`plesio.secure_sums`)."""
WORDS_HEAD = struct.Struct("<I")
Spans = Sequence[tuple[int, int]]


class Payloads:
    """For a model of this `layout`, in this `phase` of the strategy.

    Attributes:
        packing: of contributions; `answers`: of what is sent back.
        moving: the bytes (start, end) of a version that the server moves; `everything`: all of one.
    """

    def __init__(self, layout: Layout, strategy: Strategy, phase: int = 0) -> None:
        self.layout, self.phase, self._strategy = layout, phase, strategy
        sent, shown = strategy.phases[phase].send.codec, strategy.phases[phase].adopt.codec
        self.packing = Packing(layout, sent) if sent is not None else None
        self.answers = Packing(layout, shown) if shown is not None else None
        self.moving: Spans = layout.stretches(MOVING)
        self.everything: Spans = [(0, layout.nbytes)]

    def turned_to(self, phase: int) -> Payloads:
        """For another phase."""
        return Payloads(self.layout, self._strategy, phase)

    def is_packed(self, answer: Beginning | GoOn) -> bool:
        """Whether what travels with it is a packed difference."""
        return self.answers is not None and isinstance(answer, GoOn) and answer.phase == self.phase

    def spans(self, message: Contribution | Beginning | GoOn) -> Spans:
        """The bytes (start, end) that travel of the arena where this message's tensors lie."""
        match message:
            case Contribution(rows=rows, beside=Aside(part=part)):
                return self.packing.spans(part) if self.packing is not None else spans_of(self.layout, rows, part)
            case GoOn(phase=phase) if phase != self.phase:
                return self.everything
            case GoOn(verdict=Verdict.CANCELLED) if self.answers is None:
                return ()
            case GoOn(part=part):
                return self.answers.spans(part) if self.answers is not None else self.layout.stretches(MOVING, part)
        return self.everything


class PartPayloads(Payloads):
    """The same for a rank whose `part` of each tensor is this.

    >>> from plesio.tensors.arena import TensorSpec
    >>> layout = Layout([TensorSpec("w", (4, 2), "float32", Kind.TRAINED, 0)])
    >>> PartPayloads(layout, ps.local_sgd(), [Region((2, 0), (2, 2))]).everything
    [(16, 32)]
    """

    def __init__(self, layout: Layout, strategy: Strategy, part: Sequence[Region], leader: bool = False) -> None:
        super().__init__(layout, strategy)
        self._part = part
        self.moving, self.everything = self._of(*MOVING), self._of(*Kind)
        self.sent = self._of(Kind.TRAINED)
        if leader:
            self.sent = [*self.sent, *layout.stretches((Kind.BUFFER,))]

    def spans(self, message: Contribution | Beginning | GoOn) -> Spans:
        match message:
            case Contribution():
                return self.sent
            case GoOn():
                return self.moving
        return self.everything

    def _of(self, *kinds: Kind) -> Spans:
        """The bytes of its part of tensors of these kinds."""
        found: list[tuple[int, int]] = []
        for spec, at, region in zip(self.layout.specs, self.layout.starts, self._part, strict=True):
            size = spec.torch_dtype.itemsize
            for start, end in region.stretches(spec.shape) if spec.kind in kinds else ():
                first = at + size * start
                if found and found[-1][1] == first:
                    first, _ = found.pop()
                found.append((first, at + size * end))
        return found


def payloads_of(hello: Hello, strategy: Strategy, leader: bool = True) -> Payloads:
    """Of who says this."""
    layout = Layout(hello.model.specs)
    return PartPayloads(layout, strategy, hello.part, leader) if hello.part else Payloads(layout, strategy)


def copies(hello: Hello) -> int:
    """How many times the size of the model the first worker hands over."""
    carried = hello.optimizers[0].carried
    return 1 + (len(carried.keys) if carried is not None else 0)


def cut(memory: memoryview, spans: Spans) -> list[memoryview]:
    return [memory[start:end] for start, end in spans]


def put_words(slot: memoryview, words: bytes) -> None:
    """Lay what a worker is told into its slot."""
    whole = WORDS_HEAD.pack(len(words)) + words
    slot[: len(whole)] = whole


def words_in(slot: memoryview, head: bool = False) -> memoryview:
    """What lies there, or with the `head` before it."""
    (size,) = WORDS_HEAD.unpack_from(slot)
    return slot[0 if head else WORDS_HEAD.size : WORDS_HEAD.size + size]
