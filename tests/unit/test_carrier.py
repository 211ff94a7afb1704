"""The thread that has a worker's link while the worker computes."""

from __future__ import annotations

import select
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from plesio.core.events import Verdict
from plesio.launch.remote.bell import RemoteBell
from plesio.launch.remote.carrier import Carrier
from plesio.launch.remote.link import Reseated
from plesio.protocol.worker import Beginning, GoOn
from plesio.transport.wire import FrameKind
from plesio.worker.exchanges.server import SeatLostError

CONTRIBUTION, LOG = (FrameKind.DOORBELL, b"contribution", ()), (FrameKind.LAUNCHER, b"log", ())


class Wire:
    """A link whose sends wait until they may go, and that gives an answer, or raises, when it is told to."""

    def __init__(self) -> None:
        self.may_send, self.sent = threading.Semaphore(0), list[bytes]()
        self.coming, self.came = list[Exception | str](), list[str]()

    def send(self, kind: FrameKind, body: bytes, payload: Any) -> None:
        assert self.may_send.acquire(timeout=10.0)
        self.sent.append(body)

    def wait(self, other: int, timeout_s: float) -> None:
        select.select([other], [], [], 0.01)

    def take(self, timeout_s: float) -> None:
        if self.coming:
            came = self.coming.pop()
            if isinstance(came, Exception):
                raise came
            self.came.append(came)

    def carrier(self) -> Carrier:
        link: Any = self
        return Carrier(link, CONTRIBUTION, self.take, lambda: bool(self.came))


def test_it_is_over_when_the_answer_has_come() -> None:
    wire = Wire()
    carrier = wire.carrier()
    assert not carrier.wait(lambda: False, 0.05)
    wire.may_send.release()
    wire.coming.append("answer")
    assert carrier.wait(lambda: False, 10.0)
    assert (wire.sent, wire.came) == ([b"contribution"], ["answer"])
    assert not carrier.say(LOG)
    carrier.end()


def test_what_is_said_meanwhile_goes_out_behind_the_contribution_and_before_the_end() -> None:
    wire = Wire()
    carrier = wire.carrier()
    assert carrier.say(LOG)  # and nobody waits
    ends = threading.Timer(0.05, wire.may_send.release, (2,))
    ends.start()
    carrier.end()
    assert wire.sent == [b"contribution", b"log"]
    assert carrier.over


def test_what_it_meets_with_is_raised_by_whoever_wants_the_link_back() -> None:
    wire = Wire()
    carrier = wire.carrier()
    wire.may_send.release()
    wire.coming.append(OSError("met with"))
    assert carrier.wait(lambda: False, 10.0)
    with pytest.raises(OSError, match="met with"):
        carrier.end()
    assert "plesio-carrier" not in {one.name for one in threading.enumerate()}


def test_an_answer_to_the_life_before_is_not_taken_for_one_to_the_new_seats() -> None:
    def lost(*_: object) -> None:
        raise Reseated

    link: Any = SimpleNamespace(receive=lambda timeout_s, place: "a frame", send=lost)
    bell = RemoteBell(link, 0, lambda: Beginning(0, False, 0, 0))
    bell._came = GoOn(1, False, Verdict.TAKEN)
    assert bell.waiting(1.0)
    bell.say(*LOG)
    with pytest.raises(SeatLostError):
        bell.answer(GoOn, 1.0, number=1, version=0)
