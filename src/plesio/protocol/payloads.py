"""Which tensors travel with a message between hosts. Both ends ask here.

| message                    | with                                                                   |
| -------------------------- | ---------------------------------------------------------------------- |
| Ready, of the first worker | the initial weights, then what the keys of the optimizer's state name  |
| Contribution               | what is trained, packed where there is a codec; tables' rows; buffers  |
| Beginning                  | all parameters                                                         |
| GoOn                       | what moves, or its packed difference; nothing if its step was cancelled |
| (a frame of kind TENSORS)  | what moves                                                             |

Of what is trained, a Contribution and a GoOn have the part of the model that they name. Rows of tables:
`plesio.transport.row_payloads`.

An answer to a cancelled step comes unasked: with tensors, both sides might send and neither read.
"""

from __future__ import annotations

from collections.abc import Sequence

from plesio.core.events import Verdict
from plesio.protocol.worker import Aside, Beginning, Contribution, GoOn, Hello
from plesio.strategy import Strategy
from plesio.tensors.arena import Layout
from plesio.tensors.packing import Packing
from plesio.tensors.rows import MOVING, spans_of

Spans = Sequence[tuple[int, int]]


class Payloads:
    """For a model of this `layout`.

    Attributes:
        packing: of contributions; `answers`: of what is sent back.
        moving: the bytes (start, end) of a version that the server moves.
    """

    def __init__(self, layout: Layout, strategy: Strategy) -> None:
        sent, shown = strategy.send.codec, strategy.adopt.codec
        self.layout = layout
        self.packing = Packing(layout, sent) if sent is not None else None
        self.answers = Packing(layout, shown) if shown is not None else None
        self.moving: Spans = layout.stretches(MOVING)

    def spans(self, message: Contribution | Beginning | GoOn) -> Spans:
        """The bytes (start, end) that travel of the arena where this message's tensors lie."""
        match message:
            case Contribution(rows=rows, beside=Aside(part=part)):
                return self.packing.spans(part) if self.packing is not None else spans_of(self.layout, rows, part)
            case GoOn(verdict=Verdict.CANCELLED) if self.answers is None:
                return ()
            case GoOn(part=part):
                return self.answers.spans(part) if self.answers is not None else self.layout.stretches(MOVING, part)
        return [(0, self.layout.nbytes)]


def copies(hello: Hello) -> int:
    """How many times the size of the model the first worker hands over."""
    carried = hello.optimizers[0].carried
    return 1 + (len(carried.keys) if carried is not None else 0)


def cut(memory: memoryview, spans: Spans) -> list[memoryview]:
    return [memory[start:end] for start, end in spans]
