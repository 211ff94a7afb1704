"""The proxy of a rank of an island on another host that is not its leader.

To the launcher it is that rank. The server does not know it: what the worker says, the leader says. A rank puts its part of the
tensors into the worker's slot before, and takes its part of a version after. It says no more than which buffer.

    leader's proxy --Hello, Welcome (descriptors), Ready--> this --Welcome--> rank
    rank --Holds, Put (part)--> this: slot      rank --Get--> this: ring --part--> rank
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from plesio.launch.job import Job
from plesio.launch.local.islands import Ties
from plesio.launch.local.proxy import Launcher, Proxy, parts
from plesio.launch.local.worker_routes import parts_fit
from plesio.protocol import launcher, remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, encode
from plesio.protocol.payloads import PartPayloads, cut
from plesio.strategy import Strategy
from plesio.tensors.arena import Layout
from plesio.transport.routes import PARTING, Dialogue, Route, Routes, Spans
from plesio.transport.session import Session
from plesio.transport.wire import FrameKind


class RankDialogue(Dialogue):
    """How far a rank is, and where its worker's tensors lie.

    Attributes:
        first: whether what training begins with comes from its worker.
        ring: once its worker was welcomed; `payloads`: once the rank said what it holds.
    """

    layout = Layout([])
    first = False
    ring: Sequence[memoryview] = ()
    slot = memoryview(b"")
    payloads: PartPayloads

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self._strategy = strategy

    def may_hold(self, holds: remote.Holds) -> bool:
        if not self.ring or self.said[remote.Holds] or not parts_fit(holds.part, self.layout.specs):
            raise ProtocolError("it holds what is no part of its worker's model")
        return True

    def holds(self, holds: remote.Holds) -> None:
        self.payloads = PartPayloads(self.layout, self._strategy, holds.part)

    def may_put(self, put: remote.Put) -> bool:
        return self.said[remote.Holds] > 0 and (put.slot or (self.first and 0 <= put.copy < len(self.ring)))

    def put(self, put: remote.Put) -> Spans:
        return cut(self.slot, self.payloads.sent) if put.slot else cut(self.ring[put.copy], self.payloads.everything)

    def may_get(self, get: remote.Get) -> bool:
        return self.said[remote.Holds] > 0 and 0 <= get.buffer < len(self.ring)

    def got(self, get: remote.Get) -> Spans:
        return cut(self.ring[get.buffer], self.payloads.everything if get.all else self.payloads.moving)


R, Say = RankDialogue, Route[RankDialogue]
FROM_RANK = Routes(
    Say(remote.Holds, FrameKind.CHANNEL, R.may_hold, then=R.holds),
    Say(remote.Put, FrameKind.TENSORS, R.may_put, R.put, back=lambda t, _: ()),
    Say(remote.Get, FrameKind.PULL, R.may_get, back=R.got),
    *(Say(one, FrameKind.LAUNCHER) for one in (launcher.StopRequest, launcher.Finished, launcher.Failed)),
    *PARTING,
)


class RankProxy(Proxy[RankDialogue]):
    """Of a rank of `worker`; `line`: the tie to its leader's proxy."""

    def __init__(self, job: Job, worker: int, launcher: Launcher, line: Sequence[int], session: Session) -> None:
        dialogue = RankDialogue(job.config.strategy)
        super().__init__(job, f"a rank of worker {worker}", launcher, session, FROM_RANK, dialogue)
        self._worker = worker
        self._tie = Ties(1, line).channels[0]
        self._attend(self._tie, self._from_leader)

    def _from_leader(self, message: Any, descriptors: Sequence[int]) -> None:
        dialogue = self._dialogue
        match message:
            case messages.Hello():
                dialogue.layout = Layout(message.model.specs)
                return
            case messages.Ready():
                dialogue.first = False  # what training begins with is the server's
                return
            case messages.Welcome():
                dialogue.first, nbytes = message.first, dialogue.layout.nbytes
                ring, slots, *others = descriptors
                dialogue.ring = parts(ring, nbytes, message.buffers)
                dialogue.slot = parts(slots, nbytes, self._job.config.seats)[self._worker]
                for one in others:
                    os.close(one)
        self._session.send(FrameKind.CHANNEL, encode(message))
