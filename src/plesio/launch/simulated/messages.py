"""What a simulated worker says next, and when."""

from __future__ import annotations

from math import nan

import msgspec

from plesio.core.events import Cancel, Grant, Leased
from plesio.protocol.worker import Settings


class Push(msgspec.Struct, frozen=True, gc=False):
    """A contribution of `nbytes`, done at `ready_s`."""

    ready_s: float
    steps: int
    samples: int
    batches: int
    nbytes: int = 0
    finite: bool = True
    groups: tuple[Settings, ...] = ()
    loss: float = nan


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Wants data at `ready_s`; the rest as in `plesio.core.events.LeaseWanted` and `plesio.protocol.worker.LeaseRequest`."""

    ready_s: float
    epoch: int
    total: int
    most: int
    unused: int = 0
    digest: int = 0


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The training function returns at `ready_s`."""

    ready_s: float


Request = Push | Lease | Finish
Answer = Grant | Cancel | Leased


class Message:
    """A request on its way. `void`: it is never sent; `counted`: the meter has it already."""

    __slots__ = ("counted", "incarnation", "number", "request", "void", "worker")

    def __init__(self, worker: int, incarnation: int, number: int, request: Request) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.number = number
        self.request = request
        self.void = False
        self.counted = False
