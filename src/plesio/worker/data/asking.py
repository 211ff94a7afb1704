"""How a worker asks for its data, and for how much.

Beside the server it asks when its last batch is used. A worker that is far from it asks before that, and trains on what it has
while the request and the reply travel. One request is outstanding, sent when `margin` batches are left, for as many more. A
worker that stands still for a reply all the same doubles its margin. So a lease soon covers the way there and back. It is no
larger than that: a large one holds data back from those who join or take over from the dead, and delays a stop.
"""

from __future__ import annotations

from math import ceil
from typing import Protocol

from plesio.protocol.worker import LeaseReply, LeaseRequest
from plesio.worker.data.use import DataUse

LEASE_MAX = 8  # the most batches of one lease; less in a short epoch, so that its end is shared out evenly
AHEAD_MAX = 64  # the same for a worker that is far away,
PART_MAX = 512  # and where each has its own part of an epoch
STILL_S = 0.001  # a shorter wait for a reply is none


class Lessor(Protocol):
    """Who gives out data."""

    away: bool  # whether that is on another host, so that data is asked for ahead

    @property
    def in_parts(self) -> bool:
        """Whether each worker has its own part of the data, and takes nothing of the others'."""

    def now_s(self) -> float:
        """The time, in seconds from any beginning."""

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Data to work on; waits for it. What was asked `ahead` is only waited for."""

    def ask_ahead(self, request: LeaseRequest, due: bool) -> bool:
        """Ask for data without waiting, if that is `due`; whether it was done."""


class Asking:
    """One worker's requests for data, of which an epoch has `total` batches."""

    def __init__(self, lessor: Lessor, total: int, workers: int, used: DataUse) -> None:
        self._lessor = lessor
        self._total = total
        self._used = used
        share = min(PART_MAX, ceil(total / workers)) if lessor.in_parts else min(AHEAD_MAX, total // (2 * workers))
        self._margin = max(1, min(LEASE_MAX, total // (8 * workers)))
        self._margin_max = max(self._margin, share)
        self._digest = 0
        self.forget()

    def forget(self) -> None:
        """What was asked ahead is lost."""
        self._ahead: LeaseRequest | None = None  # whose reply nobody has used,
        self._reply: LeaseReply | None = None  # and that, once it was waited for

    def ahead(self, epoch: int, left: int) -> None:
        """Ask for more of the epoch without waiting, if so few batches are left."""
        if self._ahead is None:
            request = LeaseRequest(epoch, self._total, self._margin, 0, self._digest, ahead=True)
            if self._lessor.ask_ahead(request, left <= self._margin):
                self._ahead = request

    def more(self, epoch: int, unused: int, digest: int) -> LeaseReply:
        """Wait for the next lease. What an earlier pass had asked for goes back, with all else that it left `unused`."""
        began_s, self._digest, losses = self._lessor.now_s(), digest, self._used.losses
        self._await()
        asked, reply = self._ahead, self._reply
        self.forget()
        fresh = self._used.losses != losses  # it lost its seat, and asked anew
        if asked is None or reply is None or asked.epoch != epoch or unused or not (fresh or self._is_final(reply)):
            unused += len(reply.batches) if reply is not None else 0
            reply = self._lessor.lease(LeaseRequest(epoch, self._total, self._margin, unused, digest))
        self._used.waited_s += self._lessor.now_s() - began_s
        return reply

    def _is_final(self, reply: LeaseReply) -> bool:
        """Whether there is no need to ask again after `reply`, which was asked ahead. Where workers share the data, a batch may
        have come back since it found none: of a step that was called off, or of one who died."""
        return bool(reply.batches) or reply.stop or self._lessor.in_parts

    def find_out(self) -> float:
        """How far the run is, in epochs; asks for no data."""
        self._await()
        return self._lessor.lease(LeaseRequest(0, self._total, 0, 0, 0)).epoch

    def _await(self) -> None:
        """Wait for the reply to what was asked ahead."""
        if self._ahead is not None and self._reply is None:
            began_s = self._lessor.now_s()
            self._reply = self._lessor.lease(self._ahead)
            if self._lessor.now_s() - began_s > STILL_S:
                self._margin = min(2 * self._margin, self._margin_max)
