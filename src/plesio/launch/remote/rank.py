"""The context of a rank of an island on another host than the server: it carries its own part of the model, and nothing else.

    leader                       another rank                  the head
                                 Put: its part  ------------------> the worker's slot, by its proxy
    IslandGroup.total ---------- when all other parts lie there
    Contribution, its part  --------------------------------------> the worker's slot, and the server folds it
    <------------------------------------------ GoOn, buffer, its part
    IslandGroup.told ---------> GoOn, buffer
                                 Get: buffer ---------------------> the version, by its proxy
                                 <-------------------------------- its part
    IslandGroup.spread --------- what several ranks hold, and each took a piece of

The server keeps that version until the leader's next contribution, which comes after all have their parts. A rank has one arena,
of which only the pages of its part are memory. Contributions are made where the version came: it is read before, and comes anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from msgspec.structs import replace

from plesio.launch.remote.bell import RemoteBell
from plesio.launch.remote.link import WorkerLink
from plesio.launch.remote.worker import RemoteContext
from plesio.protocol import worker as messages
from plesio.protocol.remote import Get, Holds, Put
from plesio.protocol.worker import A, Beginning, Contribution, FromWorker
from plesio.tensors.arena import Arena, Kind, Layout
from plesio.tensors.carrying import Carried
from plesio.tensors.rows import MOVING
from plesio.transport.doorbell import nothing
from plesio.transport.island_group import IslandGroup
from plesio.transport.ring import Ring, Shown
from plesio.transport.wire import FrameKind
from plesio.worker.exchanges.island_bell import IslandBell
from plesio.worker.exchanges.place import Place
from plesio.worker.introduction import Taking
from plesio.worker.island import Island
from plesio.worker.replicas.regions import RankShare


class RankBell(IslandBell):
    """`own` is this rank's line to its proxy."""

    def __init__(self, island: Island, own: RemoteBell, timeout_s: float) -> None:
        super().__init__(island, own if island.rank == 0 else None)
        self._own = own
        self._timeout_s = timeout_s
        self._shared: list[tuple[Kind, RankShare, Arena, int]] = []

    def lay_out(self, version: Arena, shares: Sequence[RankShare]) -> None:
        """Versions come there, of which this rank holds its share of each tensor."""
        specs = enumerate(version.layout.specs)
        self._shared = [(one.kind, shares[at], version, at) for at, one in specs if shares[at].pieces]

    def send(self, message: FromWorker) -> None:
        if isinstance(message, Contribution) and self._line is None:
            part = self._own.payload(message)
            self._own.fetch(FrameKind.TENSORS, Put(), self._timeout_s, "put its part of a contribution", payload=part)
        super().send(message)

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing
    ) -> A:
        answer = super().answer(kind, timeout_s, number, version, meanwhile)
        everything = isinstance(answer, Beginning)
        if self._line is None:
            into = self._own.everything if everything else self._own.moving
            get = Get(self._place, everything)
            self._own.fetch(FrameKind.PULL, get, self._timeout_s, "took its part of a version", into)
        self._spread(everything)
        return answer

    def _spread(self, everything: bool) -> None:
        """What several ranks hold, all of those have."""
        pieces: list[list[tuple[torch.Tensor, bool]]] = [[] for _ in range(self._group.ranks)]
        for kind, share, version, at in self._shared:
            if not everything and kind not in MOVING:
                continue
            for rank, piece in enumerate(share.pieces):
                if piece.numel:
                    pieces[rank].append((piece.of(version.views[at]), piece.meets(share.holds)))
        self._group.spread(pieces)

    def shown(self, ring: Ring[Arena]) -> Shown[Arena]:
        return ring.first


class RankContext(RemoteContext):
    """A rank of an island, the leader or another."""

    away = False  # it does not go on while an answer travels

    def __init__(self, link: WorkerLink) -> None:
        super().__init__(link)
        self._shows = self._shows and link.is_leader

    def gather(self, group: IslandGroup, local_rank: int) -> None:
        """The ranks agree by `group`."""
        super().gather(group, local_rank)
        self._bell = self._ranks = RankBell(self.island, self._line, self._timeout_s)

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        if self.island.rank == 0:
            super().logged(steps, metrics)

    def _memory(self, layout: Layout) -> tuple[Arena, Arena]:
        one = Arena.private(layout)
        return one, one

    def _seated(self, given: Taking, hello: messages.Hello, carried: Carried | None) -> Place:
        assert self.process.part is not None, "the model is split among ranks"
        shares = self.process.part.held
        place = super()._seated(given, replace(hello, part=tuple(one.sends for one in shares)), carried)
        self._ranks.lay_out(place.slot, shares)
        return place

    def _ready(self, place: Place) -> None:
        """Each rank hands over its part of what training begins with; then the leader says so."""
        leader, group = self.island.rank == 0, self.island.group
        assert group is not None, "they are together"
        if leader:
            self._line.say(FrameKind.CHANNEL, self._hello)
        welcome = self._ask(messages.Welcome, "every worker to prepare its model")
        brought = place.initial if welcome.first else ()
        if not leader:
            self._line.say(FrameKind.CHANNEL, Holds(self._hello.part))
            for copy, arena in enumerate(brought):
                put = Put(slot=False, copy=copy)
                part = self._line.whole([arena])
                self._line.fetch(FrameKind.TENSORS, put, self._timeout_s, "put what training begins with", payload=part)
        group.total([])
        if leader:
            self._line.say(FrameKind.CHANNEL, messages.Ready(), self._line.whole(brought))
