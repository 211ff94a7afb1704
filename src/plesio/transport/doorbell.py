"""The two pipes of a worker: its messages (`plesio.protocol.worker`) one way, answers the other.

A doorbell is 6 us there and back, and end of file tells that the other side died. Tensors do not pass here: they lie in the
worker's slot. The message is written only when they do: a process that is killed half way leaves nothing to be read.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from plesio.errors import DeadlineError, ServerLostError
from plesio.protocol.coding import MALFORMED, ProtocolError, decoder_of, encode
from plesio.protocol.worker import A, Answer, FromWorker
from plesio.transport.channel import HEAD
from plesio.transport.ring import Ring, Shown

T = TypeVar("T")
ANSWER_LAYOUT = struct.Struct("<iI252p")
"""A buffer's number, the answer's, a length, and as many bytes, filled up. All records are as long: each is read by itself and
whole. Behind a full one there is another of the same answer."""
FULL = 251
ANSWER_BYTES_MAX = 15 * FULL - 1
"""A pipe takes as many records whole."""
PLACE = struct.Struct("<i")
"""Between hosts, the buffer's number before an answer."""
decode_message: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
decode_answer: Callable[[bytes], Answer] = decoder_of(Answer)
_decode_answer: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode  # the same in one call

LOOK_S = 2e-4
"""How long to look for a message before sleeping for it, where waits are that short: waking a sleeping core costs as much
as a small exchange."""
GLANCE_S = 2e-5
"""How long to look where they are not."""


class Lookout:
    """Waits for what `poller` watches: looks for a moment, sleeps then.

    Between two looks the core is offered to others, so that on a busy host nobody is kept from working. How long it looks
    depends on how long the last wait was (docs/decisions/0002).
    """

    def __init__(self, poller: select.poll) -> None:
        self._poller = poller
        self._look_s = GLANCE_S

    def wait(self, timeout_s: float) -> list[tuple[int, int]]:
        """What is there within `timeout_s`; nothing if that is over."""
        began_s = now_s = time.monotonic()
        end_s = began_s + self._look_s
        while not (found := self._poller.poll(0)):
            if now_s > end_s:
                found = self._poller.poll(timeout_s * 1000)
                now_s = time.monotonic()
                break
            os.sched_yield()
            now_s = time.monotonic()
        self._look_s = LOOK_S if now_s - began_s < LOOK_S else GLANCE_S
        return found


def framed(message: FromWorker) -> bytes:
    """The bytes on the pipe: as on a channel, a length comes first."""
    body = encode(message)
    return HEAD.pack(len(body)) + body


class Located(NamedTuple):
    """An answer, and the buffer of the ring that holds the version it names for the reader that is answered."""

    answer: Answer
    buffer: int

    def stopping(self) -> Located:
        """The same, and the worker is to stop."""
        return Located(replace(self.answer, stop=True), self.buffer)


class MessageReader:
    """The server's end of the pipe that a worker's messages come in by."""

    def __init__(self, descriptor: int, read: Callable[[int, int], bytes] = os.read) -> None:
        self.descriptor = descriptor
        self._read = read
        self._rest = b""

    def read(self) -> list[FromWorker] | None:
        """The messages that have come whole; None when the worker is gone. `ProtocolError` for what is no message."""
        data = self._read(self.descriptor, 65536)
        if not data:
            return None
        data = self._rest + data if self._rest else data
        messages: list[FromWorker] = []
        at = 0
        while (begin := at + HEAD.size) <= len(data):
            end = begin + HEAD.unpack_from(data, at)[0]
            if end > len(data):
                break
            try:
                messages.append(decode_message(data[begin:end]))
            except MALFORMED as error:
                raise ProtocolError(f"{end - begin} bytes are no message of a worker: {error}") from None
            at = end
        self._rest = data[at:]
        return messages


def write_answer(descriptor: int, answer: Answer, buffer: int = 0, number: int = 0) -> bool:
    """Answer a worker, and say which buffer it goes on from; False if it is gone. `number`: of the worker's answers, from 1. A
    server's successor may give one again.

    BlockingIOError: it read none of the last ones, and there is no room for this one (the pipe is not to block).
    """
    try:
        body = encode(answer)
        assert len(body) <= ANSWER_BYTES_MAX, "an answer is small"
        pieces = (body[at : at + FULL] for at in range(0, len(body) + 1, FULL))
        os.write(descriptor, b"".join(ANSWER_LAYOUT.pack(buffer, number, piece) for piece in pieces))
    except BrokenPipeError:
        return False
    return True


def nothing() -> None:
    """What there is to do meanwhile, where there is nothing."""


class AnswerReader:
    """The worker's end of the pipe that its answers come in by."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._number = 0

    def read(self) -> tuple[int, bytes] | None:
        """A buffer's number and an answer, packed, which is empty when the server is gone; None for one that came before."""
        body = piece = b""
        while not body or len(piece) == FULL:
            data = os.read(self.descriptor, ANSWER_LAYOUT.size)
            if len(data) < ANSWER_LAYOUT.size:
                return 0, b""
            place, number, piece = ANSWER_LAYOUT.unpack(data)
            body += piece
        if 0 < number <= self._number:
            return None
        self._number = number
        return place, body


class Doorbell:
    """A worker's end of its two pipes; `ServerLostError` when the server is gone."""

    def __init__(self, push: int, answer: int, worker: int) -> None:
        self.place = 0
        self._push = push
        self._answers = AnswerReader(answer)
        self._read: tuple[int, bytes] | None = None  # and not taken
        self._worker = worker
        self._poller = select.poll()
        self._poller.register(answer, select.POLLIN)
        self._lookout = Lookout(self._poller)

    def send(self, message: FromWorker) -> None:
        try:
            os.write(self._push, framed(message))
        except BrokenPipeError as error:
            raise self._lost("told it of its work") from error

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer lies there (or the server is gone); waits for one up to `timeout_s`."""
        if self._read is None and self._poller.poll(timeout_s * 1000):
            self._read = self._answers.read()
        return self._read is not None

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing
    ) -> A:
        """Wait for the next answer, after doing what can be done `meanwhile`; `DeadlineError` if it is not there in time."""
        started_s = time.monotonic()
        meanwhile()
        while (read := self._read) is None:
            if not self._lookout.wait(timeout_s):
                raise DeadlineError(
                    f"worker {self._worker} {_phase(number, version)} for {time.monotonic() - started_s:.0f} s: the server "
                    "has not answered; it is frozen or starved, or another worker holds everybody for longer than timeout_s"
                )
            self._read = self._answers.read()
        self._read = None
        self.place, body = read
        if not body:
            raise self._lost(_phase(number, version))
        try:
            answer = _decode_answer(body)
        except MALFORMED as error:
            raise ProtocolError(f"{len(body)} bytes are no answer of the server: {error}") from None
        assert isinstance(answer, kind), "a worker knows what comes next"
        return answer

    def shown(self, ring: Ring[T]) -> Shown[T]:
        """The version that the last answer named."""
        return ring.buffers[self.place]

    def _lost(self, phase: str) -> ServerLostError:
        return ServerLostError(
            f"the server is gone: worker {self._worker} {phase}; "
            "its last version is lost unless a checkpoint holds it; go on from that with resume=, or start the run again"
        )


def _phase(number: int, version: int) -> str:
    return f"waited for the answer to contribution {number} (computed from version {version})"
