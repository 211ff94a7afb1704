"""The context of a worker on another host than its server.

It has what a worker beside the server has, with memory of its own: a ring of one buffer, into which each version is received
where the model reads it, and a slot, from which each contribution is sent where its gradients lie.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from plesio.core.events import Verdict
from plesio.errors import ConfigurationError, DeadlineError
from plesio.launch.participation import Participation, Place, Reply
from plesio.launch.remote.carrier import Carrier
from plesio.launch.remote.link import Link, Reseated
from plesio.launch.remote.rows import RemoteRows
from plesio.observe.clients import Visit
from plesio.protocol import launcher
from plesio.protocol import worker as messages
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.payloads import Payloads, copies, cut, payloads_of
from plesio.protocol.worker import A, Answer, Beginning, GoOn
from plesio.strategy import Strategy
from plesio.tables.file import KeptRows
from plesio.tensors.arena import Arena, Layout
from plesio.tensors.carrying import Carried
from plesio.transport.doorbell import PLACE, nothing
from plesio.transport.ring import Ring, Shown, nothing_to_renew
from plesio.transport.wire import Frame
from plesio.transport.wire import Kind as FrameKind
from plesio.worker.context import Taking
from plesio.worker.exchanges.server import SeatLostError
from plesio.worker.pacer import Pacer
from plesio.worker.replicas.replica import reads_in_place
from plesio.worker.warn import warn

decode_answer: Callable[[bytes], Answer] = decoder_of(Answer)
decode_said: Callable[[bytes], messages.ToWorker] = decoder_of(messages.ToWorker)


class RemoteBell:
    """What a worker's doorbell is (`plesio.transport.doorbell`), over a link: tensors go with the messages.

    Where it waits, it raises `SeatLostError` if the seat is lost, and `DeadlineError` if nothing comes in time. While a worker
    that goes on has a contribution in flight, a `Carrier` has the link.
    """

    place = 0  # the buffer that the last answer named, at the server

    def __init__(self, link: Link, worker: int, rejoin: Callable[[], Beginning]) -> None:
        self.reseated = False  # whether the worker lost its seat, and has to introduce itself
        self.untold: Beginning | None = None  # it has done so, and the loop does not know that its step is lost
        self.rows: RemoteRows | None = None
        self._rejoin = rejoin
        self._link = link
        self._carrier: Carrier | None = None
        self._pulled = False
        self._into: Sequence[memoryview] = ()  # where what is pulled belongs
        self._worker = worker
        self._answers: deque[Answer] = deque()
        self._replies: deque[messages.ToWorker] = deque()
        self._came: Answer | messages.ToWorker | None = None  # with the last frame

    def lay_out(self, payloads: Payloads, ring: Arena, slot: Arena) -> None:
        """From now on versions are received into `ring`, and contributions sent from `slot`."""
        self._payloads, self._versions, self._packed = payloads, ring, ring
        if payloads.answers is not None:
            payloads.answers.ready()
            self._packed = Arena.private(payloads.layout)
        self._ring, self._slot = ring.memory.numpy().data, slot.memory.numpy().data

    def send(self, message: messages.FromWorker) -> None:
        payload = self.payload(message) if isinstance(message, messages.Contribution) else []
        if isinstance(message, messages.Contribution) and message.beside.rows and self.rows is not None:
            payload += self.rows.gradients(message.number)
        if isinstance(message, messages.Contribution) and message.beside.goes_on and not self.reseated:
            frame = FrameKind.DOORBELL, encode(message), payload
            self._carrier = Carrier(self._link, frame, self._receive, lambda: bool(self._answers))
        else:
            self.say(FrameKind.DOORBELL, message, payload)

    def payload(self, message: messages.Contribution) -> list[memoryview]:
        """The tensors that go with it, from the slot."""
        return cut(self._slot, self._payloads.spans(message))

    def shown(self, ring: Ring[Arena]) -> Shown[Arena]:
        return ring.first

    def say(self, kind: FrameKind, message: object, payload: Sequence[memoryview] = ()) -> None:
        """Send a message. If the seat is lost it is dropped: what it is about is lost, too."""
        if self.reseated or (self.untold is not None and kind is not FrameKind.LAUNCHER):
            return
        frame = kind, encode(message), payload
        if self._carrier is not None and self._carrier.say(frame):
            return
        try:
            self._settle()
            self._link.send(*frame)
        except Reseated:
            self._lose()

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer has come, or the seat is lost; waits for that up to `timeout_s`."""
        if self._carrier is not None:
            return self._carrier.over  # no system call; a worker that goes on never waits here
        if not self._answers and not self.reseated:
            self._hear(timeout_s, lambda: bool(self._answers))
        return bool(self._answers) or self.reseated

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing
    ) -> A:
        meanwhile()
        phase = f"waited for the answer to contribution {number} (computed from version {version})"
        self._until(lambda: self._carrier is None and bool(self._answers), timeout_s, phase)
        answer = self._answers.popleft()
        assert isinstance(answer, kind), "a worker knows what comes next"
        if isinstance(answer, GoOn) and self._payloads.answers is not None:
            self._payloads.answers.move(self._versions, self._packed, answer.part)
        if isinstance(answer, GoOn) and answer.verdict is Verdict.CANCELLED:
            self.fetch(FrameKind.PULL, b"", timeout_s, phase, self.moving)
        return answer

    @property
    def moving(self) -> list[memoryview]:
        """Where what moves comes."""
        return cut(self._ring, self._payloads.moving)

    @property
    def everything(self) -> list[memoryview]:
        """Where all of a version comes."""
        return cut(self._ring, self._payloads.everything)

    def whole(self, arenas: Sequence[Arena]) -> list[memoryview]:
        """What training begins with, as far as it is this process's to send."""
        return [one for arena in arenas for one in cut(arena.memory.numpy().data, self._payloads.everything)]

    def fetch(
        self,
        kind: FrameKind,
        message: object,
        timeout_s: float,
        phase: str,
        into: Sequence[memoryview] = (),
        payload: Sequence[memoryview] = (),
    ) -> None:
        """Say this, and wait for what is sent back, which belongs `into` there."""
        self._pulled, self._into = False, into
        self.say(kind, message, payload)
        self._until(lambda: self._pulled, timeout_s, phase)

    def reply(self, kind: type[messages.ToWorker], timeout_s: float, waiting_for: str) -> messages.ToWorker:
        """Wait for the next message of this kind on the channel, or a refusal. Data that was asked ahead may come before it."""

        def come() -> list[messages.ToWorker]:  # a copy: a carrier adds to them meanwhile
            return [one for one in tuple(self._replies) if isinstance(one, (kind, messages.Refused))]

        self._until(lambda: bool(come()), timeout_s, f"waited for {waiting_for}")
        reply = come()[0]
        self._replies.remove(reply)
        return reply

    def end(self) -> None:
        """The link is the training thread's from here on; nobody asks any more what came of the contribution in flight."""
        with suppress(Exception):
            self._settle()

    def _until(self, done: Callable[[], bool], timeout_s: float, phase: str) -> None:
        end_s = time.monotonic() + timeout_s
        while self.untold is not None or not done():
            if self.reseated or self.untold is not None:
                raise SeatLostError(self._rejoin)
            left_s = end_s - time.monotonic()
            if left_s <= 0 and self._carrier is None:
                raise DeadlineError(
                    f"worker {self._worker} {phase} for {timeout_s:.0f} s: the server has not answered; it is frozen or "
                    "starved, or another worker holds everybody for longer than timeout_s"
                )
            self._hear(left_s, done)

    def _hear(self, timeout_s: float, done: Callable[[], bool]) -> None:
        """Take one frame, if one comes in time; or wait until it is `done` by the carrier, or the link is this thread's again."""
        try:
            if self._carrier is None:
                self._receive(timeout_s)
            elif self._carrier.wait(done, timeout_s) or timeout_s <= 0:
                self._settle()
        except Reseated:
            self._lose()

    def _settle(self) -> None:
        """Have the link back, after what its carrier is at, and raise what that met with."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.end()

    def _receive(self, timeout_s: float) -> None:
        frame = self._link.receive(timeout_s, self._place)
        if frame is None:
            return
        came = self._came
        if came is None:
            self._pulled = True
        elif isinstance(came, Answer):
            self._answers.append(came)
        else:
            self._replies.append(came)

    def _place(self, frame: Frame) -> Sequence[memoryview]:
        """Read the message, and say where its payload belongs."""
        if frame.kind is FrameKind.CHANNEL:
            self._came = decode_said(frame.body)
            return self.rows.coming() if isinstance(self._came, messages.RowsServed) and self.rows is not None else ()
        if frame.kind is not FrameKind.ANSWER:
            self._came = None
            return self._into
        (self.place,) = PLACE.unpack_from(frame.body)
        self._came = answer = decode_answer(frame.body[PLACE.size :])
        if isinstance(answer, GoOn):
            return cut(self._packed.bytes, self._payloads.spans(answer))
        return self.everything if isinstance(answer, Beginning) else ()

    def _lose(self) -> None:
        self.reseated, self.untold = True, None
        self._answers.clear()
        self._replies.clear()


class RemoteContext(Participation):
    """The context of a worker on another host; `link` is the connection with its deputy."""

    away = True

    def __init__(self, link: Link) -> None:
        terms, rank = link.seated.terms, link.seated.worker
        strategy = Strategy.from_data(terms.name, terms.strategy)
        pacer = Pacer(None, 1.0, random.Random())
        lone = terms.seats == link.ranks == 1
        super().__init__(rank, terms.workers, terms.seed, strategy, pacer, lone, terms.stealing)
        self.lenient = terms.lenient
        self._shows = terms.evaluates and terms.trusts
        self._line = self._bell = RemoteBell(link, rank, self._rejoin)
        self._timeout_s = 2 * terms.timeout_s  # the server notices first, and knows who is waited for
        self._link = link
        self._asks = False  # for data
        self._servers = terms.servers
        self._brought: tuple[str, ...] = ()  # the tables that have rows of before the run

    @property
    def ticket(self) -> bytes:
        """What this process shows when it comes back."""
        return self._link.seated.ticket

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        self._line.say(FrameKind.LAUNCHER, launcher.Logged(self._trained_s, steps, metrics))

    def visited(self, visits: tuple[Visit, ...]) -> None:
        self._line.say(FrameKind.LAUNCHER, launcher.Visited(visits))

    def stop(self, why: str) -> None:
        self._line.say(FrameKind.LAUNCHER, launcher.StopRequest(why))

    def _seated(self, given: Taking, hello: messages.Hello, carried: Carried | None) -> Place:
        """Memory of our own. The server hears of us once all else is there."""
        strategy, layout = self._strategy, Layout(hello.model.specs)
        ring, slot = self._memory(layout)
        initial = [Arena.private(layout) for _ in range(copies(hello))]
        self._hello, self._carried = hello, initial[1:]
        self._line.lay_out(payloads_of(hello, strategy, self.island.rank == 0), ring, slot)
        if hello.tables:
            self._line.rows = RemoteRows(hello.tables, self._servers)
            self._goes_on = lambda: False  # both sides might send, keys and an answer, and neither read
        renew = nothing_to_renew if reads_in_place(strategy, layout, given.model) else None
        rows = self._line.rows.slots if self._line.rows is not None else ()
        return Place(layout, initial, True, Ring((ring,), renew=renew), slot, rows=rows, bring=self._bring)

    def _memory(self, layout: Layout) -> tuple[Arena, Arena]:
        """Where versions come, and where contributions are made."""
        return Arena.private(layout), Arena.private(layout)

    def _bring(self, rows: Mapping[str, KeptRows]) -> None:
        self._brought = tuple(rows)

    def _ready(self, place: Place) -> None:
        while True:
            with suppress(SeatLostError):
                return self._introduce(place.initial)

    def _introduce(self, initial: Sequence[Arena]) -> None:
        """Introduce the worker to the server; the first one hands over the initial weights, and what its optimizer held."""
        self._line.reseated = False
        self._line.waiting()  # the run may be over by now: what its head said last is lost when it is sent something
        self._line.say(FrameKind.CHANNEL, self._hello)
        welcome = self._ask(messages.Welcome, "every worker to prepare its model")
        if welcome.first and self._brought:
            raise ConfigurationError(
                f"the model's tables have rows ({', '.join(self._brought)}), with which the run would begin, and a worker of "
                "another host cannot hand them over: start a worker on the head's own host first, or go on with resume="
            )
        self._line.say(
            FrameKind.CHANNEL,
            messages.Ready(),
            self._line.whole(initial) if welcome.first else (),
        )

    def _rejoin(self) -> Beginning:
        """Introduce the worker anew, until it can go on from a version."""
        assert self._exchange is not None and self._used is not None, "a seat is lost during training"
        if self._line.rows is not None:
            self._line.rows.forget()
        if self._line.untold is not None:
            beginning, self._line.untold = self._line.untold, None
            return beginning
        replica = self._exchange.replica
        weights = Arena.private(replica.layout)  # as they are: a restarted head that knows none begins from them
        for tensor, view in zip(replica.tensors, weights.views, strict=True):
            view.copy_(tensor.detach())
        if self._begun_s is not None:
            self._hello = replace(self._hello, at=self.state.at(self._used.batches, self._asks))
        while True:
            with suppress(SeatLostError):
                self._introduce([weights, *self._carried])
                beginning = self._line.answer(Beginning, self._timeout_s, 0, 0)
                break
        if beginning.version < self.state.version:
            without = " without rows of tables" if self._line.rows is not None and not beginning.version else ""
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

    def _send_rows(self, request: messages.RowsRequest) -> None:
        assert self._line.rows is not None, "its model has tables"
        self._line.say(FrameKind.CHANNEL, request, self._line.rows.sent(request))

    def _rows(self, request: messages.RowsRequest) -> None:
        """If the seat is lost, so is the step that needs the rows. The loop hears of it when it sends that, and computes until
        then from what lies there."""
        assert self._used is not None, "it has prepared"
        began_s = self.now_s()
        with suppress(SeatLostError):
            if request.number:
                self._rows_for(request)
            else:
                self._read(request)
        self._used.waited_s += self.now_s() - began_s

    def _read(self, request: messages.RowsRequest) -> None:
        """These are part of no step: where the seat is lost, the next one gives them."""
        untold, self._line.untold = self._line.untold, None
        while True:
            try:
                self._rows_for(request)
                break
            except SeatLostError as lost:
                untold = lost.rejoin()
        self._line.untold = untold

    def _rows_for(self, request: messages.RowsRequest) -> None:
        self._send_rows(replace(request, wanted=()) if request.ahead else request)
        self._ask(messages.RowsServed, "rows of tables")

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
        self._link.part(FrameKind.LAUNCHER, encode(failed or launcher.Finished()))
