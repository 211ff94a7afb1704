"""The context of a worker on another host than its server.

It has what a worker beside the server has, with memory of its own: a ring of one buffer, into which each version is received
where the model reads it, and a slot, from which each contribution is sent where its gradients lie.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from plesio.launch.gathering import GatheringContext
from plesio.launch.participation import Reply
from plesio.launch.remote.asking_rows import AskingRows
from plesio.launch.remote.bell import RemoteBell
from plesio.launch.remote.link import WorkerLink
from plesio.observe.clients import Visit
from plesio.protocol import launcher
from plesio.protocol import worker as messages
from plesio.protocol.coding import encode
from plesio.protocol.payloads import copies, payloads_of
from plesio.protocol.worker import Beginning
from plesio.strategy import Strategy
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.carrying import Carried, States, brought_back
from plesio.transport.ring import Ring, nothing_to_renew
from plesio.transport.wire import FrameKind
from plesio.worker.exchanges.place import Place
from plesio.worker.exchanges.server import SeatLostError
from plesio.worker.introduction import Taking
from plesio.worker.pacer import Pacer
from plesio.worker.replicas.replica import reads_in_place
from plesio.worker.warn import warn


class RemoteContext(GatheringContext):
    """The context of a worker on another host; `link` is the connection with its proxy."""

    away = True

    def __init__(self, link: WorkerLink) -> None:
        terms, worker = link.seated.terms, link.seated.worker
        strategy = Strategy.from_data(terms.name, terms.strategy)
        pacer = Pacer(None, 1.0, random.Random())
        lone = terms.seats == link.ranks == 1
        super().__init__(worker, terms.workers, terms.seed, strategy, pacer, lone, terms.stealing)
        self.lenient, self.by_round = terms.lenient, terms.by_round
        self._shows = terms.evaluates and terms.trusts
        self._line = self._bell = RemoteBell(link, worker, self._rejoin)
        self._timeout_s = 2 * terms.timeout_s  # the server notices first, and knows who is waited for
        self._link = link
        self._asks = False  # for data
        self._servers = terms.servers

    @property
    def ticket(self) -> bytes:
        """What this process shows when it comes back."""
        return self._link.seated.ticket

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        self._line.say(FrameKind.LAUNCHER, launcher.LoggedByWorker(self._trained_s, steps, metrics))

    def visited(self, visits: tuple[Visit, ...], early: bool = False) -> None:
        self._line.say(FrameKind.LAUNCHER, launcher.Visited(visits, early))

    def stop(self, why: str) -> None:
        self._line.say(FrameKind.LAUNCHER, launcher.StopRequest(why))

    def _seated(self, given: Taking, hello: messages.Hello, carried: Carried | None) -> Place:
        """Memory of our own. The server hears of us once all else is there."""
        strategy, layout = self._strategy, Layout(hello.model.specs)
        ring, slot = self._memory(layout)
        initial = [Arena.private(layout) for _ in range(copies(hello))]
        self._hello, self._carried = hello, initial[1:]
        self._line.lay_out(payloads_of(hello, strategy, self.island.rank == 0), ring, slot)
        assert self._used is not None, "it prepares"
        self._rows = AskingRows(self._line, hello.tables, self._servers, self._ask, self._used, self.now_s)
        if hello.tables:
            self._goes_on = lambda: False  # both sides might send, keys and an answer, and neither read
        in_place = any(reads_in_place(one, layout, given.model) for one in strategy.phases)
        renew = nothing_to_renew if in_place else None
        versions = Ring((ring,), renew=renew)
        return Place(layout, initial, True, versions, slot, brought=self._brought_state, rows=self._rows.place)

    def _brought_state(self) -> States:
        """What the optimizer goes on with, as it was sent."""
        state, self._line.state = self._line.state, None
        if state is None or self._exchange is None:
            return {}
        tensors, (carried, arenas) = self._exchange.replica.tensors, state
        return brought_back(carried, tensors, arenas, lambda place, there: there.to(tensors[place].device, copy=True))

    def _memory(self, layout: Layout) -> tuple[Arena, Arena]:
        """Where versions come, and where contributions are made."""
        return Arena.private(layout), Arena.private(layout)

    def _ready(self, place: Place) -> None:
        while True:
            with suppress(SeatLostError):
                return self._introduce(place.initial)

    def _introduce(self, initial: Sequence[Arena]) -> None:
        """Introduce the worker to the server; the first one hands over the initial weights, and what its optimizer held."""
        self._line.reseated = False
        self._line.waiting()  # the run may be over by now: what its head said last is lost when it is sent something
        self._line.say(FrameKind.CHANNEL, self._hello)
        if self._begun_s is None:
            self._await(self._line.heard)
        welcome = self._ask(messages.Welcome, "every worker to prepare its model")
        if welcome.first:
            self._rows.refuse_brought()
        self._line.say(FrameKind.CHANNEL, messages.Ready(), self._line.whole(initial) if welcome.first else ())
        if self._begun_s is None:
            self._await(self._line.heard)

    def _rejoin(self) -> Beginning:
        """Introduce the worker anew, until it can go on from a version."""
        assert self._exchange is not None and self._used is not None, "a seat is lost during training"
        self._line.rows.forget()
        if self._line.untold is not None:
            beginning, self._line.untold = self._line.untold, None
            return beginning
        replica = self._exchange.replica
        weights = Arena.private(replica.layout)  # as they are: a restarted head that knows none begins from them
        for tensor, view in zip(replica.tensors, weights.views, strict=True):
            view.copy_(tensor.detach())
        if self._begun_s is not None:
            at = self.state.at(self._used.batches, self._asks)
            self._hello = replace(self._hello, at=at, version=self.state.version)
        while True:
            with suppress(SeatLostError):
                self._introduce([weights, *self._carried])
                beginning = self._line.answer(Beginning, self._timeout_s, 0, 0)
                break
        if beginning.version < self.state.version:
            without = "" if beginning.version else self._rows.without
            warn(
                f"the run went back from version {self.state.version} to {beginning.version}: its head was restarted{without}"
            )
        return beginning

    def _send_ahead(self, request: messages.LeaseRequest, due: bool) -> bool:
        """With what the bell says, so that the server hears all in the order in which it was said."""
        if due:
            self._line.say(FrameKind.DOORBELL, messages.AskAhead(request))
        return due

    def _leased(self, request: messages.LeaseRequest) -> messages.LeaseReply:
        self._asks = True
        if not request.ahead:
            self._line.say(FrameKind.CHANNEL, request)
        reply = self._ask(messages.LeaseReply, f"data of epoch {request.epoch}")
        self.state.stopped = self.state.stopped or reply.stop
        self._asks = False
        return reply

    def _ask(self, kind: type[Reply], waiting_for: str) -> Reply:
        return self._expected(kind, self._line.reply(kind, self._timeout_s, waiting_for))

    def reason(self) -> Exception | None:
        return None  # its link told it

    def drop(self) -> None:
        """This process was told to end in the middle of anything: to the run that is a death."""
        self._link.cut()
        self._line.end()
        self._link.close()

    def over(self, failed: launcher.Failed | None = None) -> None:
        """The training function is over; if it raised, the launcher is told what."""
        self._link.hasten()
        self._line.end()
        lost = self._line.reseated or self._line.untold is not None  # and its farewell with the seat
        if lost and failed is None:
            self._line.reseated, self._line.untold = False, None
            self.leave()
        self._link.part(FrameKind.LAUNCHER, encode(failed or launcher.Finished(self.state.early)))
