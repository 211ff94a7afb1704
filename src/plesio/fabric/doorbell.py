"""The two pipes of a worker: headers of contributions one way, answers the other.

A doorbell is 6 us there and back, and end of file tells that the other side died. Tensors do not pass here: they lie in the
worker's slot, and the header is written only when they do, so that a process killed half way left nothing to be read.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from math import nan
from typing import Any

import msgspec

from plesio.core.events import Verdict
from plesio.errors import DeadlineError, ServerLostError

HEADER_LAYOUT = struct.Struct("<BBIIQIIddI")
"""Of every note, not of PUSH alone."""
ANSWER_LAYOUT = struct.Struct("<BBHIQQ")
VERDICTS = tuple(Verdict)  # by number: a fifth of the time that Verdict(number) takes


class Note(IntEnum):
    """What a worker says on its doorbell."""

    PUSH = 1
    """A contribution lies in the slot; an answer is awaited."""
    ABANDON = 2
    """A step was dropped: it had been called off (`samples`: see `Abandoned.look`), or for the reason in `extra`."""
    REPORT = 3
    """Work that was folded elsewhere (shared memory, all-reduce); no answer is awaited."""
    MIRRORED = 4
    """The parameters were copied into the mirror, as the board asked."""
    FINISH = 5
    """The training function returned; the end of the file after this is no death."""
    ENTER = 6
    """This worker is ready for the next all-reduce (`number`: steps it completed; `samples`: its version)."""
    BROKEN = 7
    """As ENTER, but this worker needs a new group. Both are answered when all workers are there."""


class Header(msgspec.Struct, gc=False):
    """What a worker says: see `plesio.core.events` for the fields; `ready_s` is when it was done computing.

    `extra` holds the optimizer's hyper-parameters where they changed; in a REPORT, whose `number` counts the folds, it
    holds how many of them had which staleness; in an ENTER or BROKEN, the hyper-parameters again. `loss` is what the
    training function last logged under that name.
    """

    note: int
    finite: bool = True
    batches: int = 0
    steps: int = 0
    number: int = 0
    samples: int = 0
    missing: int = 0
    ready_s: float = 0.0
    extra: bytes = b""
    loss: float = nan

    def pack(self) -> bytes:
        """The bytes on the pipe."""
        return (
            HEADER_LAYOUT.pack(
                self.note,
                self.finite,
                self.batches,
                self.steps,
                self.number,
                self.samples,
                self.missing,
                self.ready_s,
                self.loss,
                len(self.extra),
            )
            + self.extra
        )


class Report(msgspec.Struct, frozen=True):
    """What travels with a REPORT: seconds spent waiting for others and exchanging with them, and the staleness of the
    worker's contributions that were folded (staleness: count)."""

    wait_s: float
    staleness: dict[int, int]
    exchange_s: float = 0.0


class Answer(msgspec.Struct, gc=False):
    """What the server answers: go on from `version`, which lies in buffer `buffer`.

    To ENTER and BROKEN: `buffer` is a `plesio.core.rollcall.Call`, `number` the group's generation, and `staleness` is 1
    if the workers' hyper-parameters differ. The first one of all: `number` contributions, `staleness` steps before the run
    was resumed.
    """

    cancel: bool
    verdict: Verdict
    stop: bool
    buffer: int
    staleness: int
    number: int
    version: int


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


class HeaderReader:
    """The server's end of the pipe that a worker's headers come in by."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""

    def read(self) -> list[Header] | None:
        """The headers that have come whole; None when the worker is gone."""
        data = os.read(self.descriptor, 65536)
        if not data:
            return None
        data = self._rest + data if self._rest else data
        headers: list[Header] = []
        at = 0
        while len(data) - at >= HEADER_LAYOUT.size:
            fields = HEADER_LAYOUT.unpack_from(data, at)
            end = at + HEADER_LAYOUT.size + fields[-1]
            if end > len(data):
                break
            headers.append(_header(fields, data[at + HEADER_LAYOUT.size : end]))
            at = end
        self._rest = data[at:]
        return headers


def _header(fields: tuple[Any, ...], extra: bytes) -> Header:
    note, finite, batches, steps, number, samples, missing, ready_s, loss, _ = fields
    return Header(note, bool(finite), batches, steps, number, samples, missing, ready_s, extra, loss)


def write_answer(
    descriptor: int, cancel: bool, verdict: int, stop: bool, buffer: int, staleness: int, number: int, version: int
) -> bool:
    """Answer a worker; False if it is gone.

    Raises:
        BlockingIOError: it read none of the last, so many that there is no room for this one (the pipe is not to block).
    """
    try:
        os.write(descriptor, ANSWER_LAYOUT.pack(cancel | stop << 1, verdict, buffer, staleness, number, version))
    except BrokenPipeError:
        return False
    return True


def nothing() -> None:
    """What there is to do meanwhile, where there is nothing."""


class Doorbell:
    """A worker's end of its two pipes."""

    def __init__(self, push: int, answer: int, worker: int) -> None:
        self._push = push
        self._answer = answer
        self._worker = worker
        self._poller = select.poll()
        self._poller.register(answer, select.POLLIN)
        self._lookout = Lookout(self._poller)

    def send(self, header: Header) -> None:
        """Tell the server.

        Raises:
            ServerLostError: it is gone.
        """
        try:
            os.write(self._push, header.pack())
        except BrokenPipeError as error:
            raise self._lost(f"sent contribution {header.number}") from error

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer lies there (or the server is gone); waits for one up to `timeout_s`."""
        return bool(self._poller.poll(timeout_s * 1000))

    def answer(self, timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing) -> Answer:
        """Wait for the next answer, after doing what can be done `meanwhile`.

        Raises:
            ServerLostError: the server is gone.
            DeadlineError: it did not answer in time.
        """
        started_s = time.monotonic()
        meanwhile()
        if not self._lookout.wait(timeout_s):
            raise DeadlineError(
                f"worker {self._worker} {_phase(number, version)} for {time.monotonic() - started_s:.0f} s: the server "
                "has not answered; it is frozen or starved, or another worker holds everybody for longer than timeout_s"
            )
        data = os.read(self._answer, ANSWER_LAYOUT.size)
        if len(data) < ANSWER_LAYOUT.size:
            raise self._lost(_phase(number, version))
        flags, verdict, buffer, staleness, number, version = ANSWER_LAYOUT.unpack(data)
        return Answer(bool(flags & 1), VERDICTS[verdict], bool(flags & 2), buffer, staleness, number, version)

    def _lost(self, phase: str) -> ServerLostError:
        return ServerLostError(
            f"the server is gone: worker {self._worker} {phase}; "
            "its last version is lost unless it was saved; start the run again"
        )


def _phase(number: int, version: int) -> str:
    return f"waited for the answer to contribution {number} (computed from version {version})"
