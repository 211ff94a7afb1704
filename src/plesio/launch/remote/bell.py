"""The doorbell of a worker on another host than its server: messages and tensors over a link."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from plesio.core.events import Verdict
from plesio.errors import DeadlineError
from plesio.launch.remote.carrier import Carrier
from plesio.launch.remote.link import Reseated, WorkerLink
from plesio.launch.remote.rows import RemoteRows
from plesio.protocol import worker as messages
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.payloads import WORDS, Payloads, cut
from plesio.protocol.remote import Pull
from plesio.protocol.rows import RowsServed
from plesio.protocol.worker import A, Answer, Beginning, GoOn
from plesio.tensors.arena import Arena
from plesio.tensors.carrying import Carried
from plesio.transport.doorbell import PLACE, nothing
from plesio.transport.ring import Ring, Shown
from plesio.transport.wire import Frame, FrameKind
from plesio.worker.exchanges.server import SeatLostError

decode_answer: Callable[[bytes], Answer] = decoder_of(Answer)
decode_said: Callable[[bytes], messages.ToWorker] = decoder_of(messages.ToWorker)


class RemoteBell:
    """What a worker's doorbell is (`plesio.transport.doorbell`), over a link: tensors go with the messages.

    Where it waits, it raises `SeatLostError` if the seat is lost, and `DeadlineError` if nothing comes in time. While a worker
    that goes on has a contribution in flight, a `Carrier` has the link.
    """

    place = 0  # the buffer that the last answer named, at the server

    def __init__(self, link: WorkerLink, worker: int, rejoin: Callable[[], Beginning]) -> None:
        self.reseated = False  # whether the worker lost its seat, and has to introduce itself
        self.untold: Beginning | None = None  # it has done so, and the loop does not know that its step is lost
        self.rows = RemoteRows((), 0)  # of a model with tables `AskingRows` has others
        self.state: tuple[Carried, Sequence[Arena]] | None = None
        """What the optimizer goes on with, if it was sent."""
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
        self._versions = ring
        self._ring, self._slot = ring.memory.numpy().data, slot.memory.numpy().data
        self._follow(payloads)

    def _follow(self, payloads: Payloads) -> None:
        self._payloads, self._packed = payloads, self._versions
        if payloads.answers is not None:
            payloads.answers.ready()
            self._packed = Arena.private(payloads.layout)

    def send(self, message: messages.FromWorker) -> None:
        payload = self.payload(message) if isinstance(message, messages.Contribution) else []
        if isinstance(message, messages.Contribution) and message.beside.rows:
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

    def heard(self, timeout_s: float) -> bool:
        """Whether there is anything to take, or the seat is lost; waits for that up to `timeout_s`."""

        def come() -> bool:
            return bool(self._answers or self._replies or self.reseated)

        if not come():
            self._hear(timeout_s, come)
        return come()

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing
    ) -> A:
        meanwhile()
        phase = f"waited for the answer to contribution {number} (computed from version {version})"
        self._until(lambda: self._carrier is None and bool(self._answers), timeout_s, phase)
        answer = self._answers.popleft()
        assert isinstance(answer, kind), "a worker knows what comes next"
        if isinstance(answer, GoOn) and self._payloads.is_packed(answer) and self._payloads.answers is not None:
            self._payloads.answers.move(self._versions, self._packed, answer.part)
        if answer.phase != self._payloads.phase:
            self._follow(self._payloads.turned_to(answer.phase))
        if isinstance(answer, GoOn) and answer.verdict is Verdict.CANCELLED:
            self.fetch(FrameKind.PULL, Pull(), timeout_s, phase, self.moving)
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

    def reply(self, kind: type[Any], timeout_s: float, waiting_for: str) -> messages.ToWorker:
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
        elif not isinstance(came, messages.StateGiven):
            self._replies.append(came)

    def _place(self, frame: Frame) -> Sequence[memoryview]:
        """Read the message, and say where its payload belongs."""
        if frame.kind is FrameKind.CHANNEL:
            self._came = decode_said(frame.body)
            if isinstance(self._came, messages.StateGiven):
                self.state = self._came.carried, [Arena.private(self._payloads.layout) for _ in self._came.carried.keys]
                return self.whole(self.state[1])
            return self.rows.coming() if isinstance(self._came, RowsServed) else ()
        if frame.kind is not FrameKind.ANSWER:
            self._came = None
            return self._into
        (self.place,) = PLACE.unpack_from(frame.body)
        self._came = answer = decode_answer(frame.body[PLACE.size :])
        if isinstance(answer, GoOn) and answer.part == WORDS:
            return [self._slot[: frame.payload_bytes]]
        into = self._packed.bytes if self._payloads.is_packed(answer) else self._ring
        return cut(into, self._payloads.spans(answer))

    def _lose(self) -> None:
        self.reseated, self.untold = True, None
        self._answers.clear()
        self._replies.clear()
