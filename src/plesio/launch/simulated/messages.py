"""What a simulated worker says next, and when."""

from __future__ import annotations

from plesio.core.events import Cancel, Grant
from plesio.protocol.worker import Contribution, LeaseReply, LeaseRequest

Request = Contribution | LeaseRequest | None
"""What a worker sends; None: its training function returned."""
Answer = Grant | Cancel | LeaseReply


class Message:
    """A request on its way, sent at `ready_s`. `void`: it is never sent."""

    __slots__ = ("incarnation", "ready_s", "request", "void", "worker")

    def __init__(self, worker: int, incarnation: int, ready_s: float, request: Request) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.ready_s = ready_s
        self.request = request
        self.void = False
