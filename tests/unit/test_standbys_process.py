"""A head's side of standing by, with a server and a launcher that the test speaks for."""

from __future__ import annotations

import importlib.metadata
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import plesio as ps
from plesio.config import RunConfig
from plesio.core.headship import Fenced
from plesio.launch.job import Job, Listening
from plesio.launch.standby import process
from plesio.launch.standby.process import Standbys
from plesio.protocol import remote
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.launcher import ToHeads
from plesio.protocol.replication import (
    Challenge,
    File,
    Followed,
    FromHead,
    Has,
    Over,
    Refused,
    StandsBy,
    StateWanted,
    StateWritten,
)
from plesio.transport.channel import Channel, channel_pair
from plesio.transport.replication_log import ReplicationLog
from plesio.transport.secure import proof_of_standby
from plesio.transport.socket_wire import SocketWire
from plesio.transport.wire import ConnectionLostError, FrameKind
from unit.test_surviving_memory import CASES, hello

TOKEN = "a token of the tests, long enough"
decode: Any = decoder_of(FromHead)


class Head:
    """Its process is a thread here. `server`: the test's end; `said`: what a worker of it said. To make that may take longer than
    a standby may be silent."""

    def __init__(self, ours: ExitStack) -> None:
        self.said = hello(0, CASES["Adam"])
        config = RunConfig(strategy=ps.async_sgd("plain"), workers=2, standby=1)
        listening = Listening(host="127.0.0.1", port=7070, token=TOKEN, credentials=None, rejoin_s=60.0)
        self.launcher, launcher = channel_pair()
        to_server, server = channel_pair()
        self.server: Channel[Any] = Channel(server, StateWanted, "the standbys' process")
        heads: Channel[ToHeads] = Channel(launcher, ToHeads, "the launcher")
        of_server: Channel[StateWritten] = Channel(to_server, StateWritten, "the server")
        self.standbys = Standbys(Job(config=config, train=None, evaluate=None, listening=listening), heads, of_server)
        running = threading.Thread(target=self.standbys.run, daemon=True)
        running.start()
        for one in (self.server, of_server, heads):
            ours.callback(one.close)
        ours.callback(running.join)
        ours.callback(self.launcher.close)

    def wanted(self) -> StateWanted:
        said, _ = self.server.receive(10.0)
        assert isinstance(said, StateWanted)
        return said

    def written(self, folder: str) -> None:
        """As the server does, where the state is one file."""
        self.log = ReplicationLog.create(1 << 16)
        (Path(folder) / "state").write_bytes(b"all")
        self.server.send(StateWritten(folder, 0, self.said, workers=2), self.log.descriptors)

    def is_fenced(self) -> None:
        """Two that vote are with another head by now."""
        contending = self.standbys._contending
        with contending._lock:
            head = contending._contender.head
            assert head is not None
            head.voters = frozenset({head.name, 1, 2})
            head.heard_of(Fenced(head.term + 1))
        until(lambda: not contending.term)


class Standby:
    """One that has connected, and proved itself."""

    def __init__(self, head: Head, ours: ExitStack, name: int = 5, every: int = 0) -> None:
        left, right = socket.socketpair()
        self.wire = ours.enter_context(closing(SocketWire(right, "the head")))
        serve = threading.Thread(target=head.standbys._serve, args=(SocketWire(left, "a standby"), "here"), daemon=True)
        serve.start()
        ours.callback(serve.join)
        ours.callback(self.wire.cut)
        proof = proof_of_standby(TOKEN, self.hears(Challenge).nonce)
        version = importlib.metadata.version("plesio")
        self.says(StandsBy("it", version, remote.PROTOCOL, name, ("127.0.0.1", 7071), proof, every))

    def says(self, message: object) -> None:
        self.wire.send(FrameKind.CHANNEL, encode(message))

    def hears(self, kind: type[Any], within_s: float = 10.0) -> Any:
        end_s = time.monotonic() + within_s
        while time.monotonic() < end_s:
            if (frame := self.wire.receive(0.1)) is None or frame.kind is FrameKind.BEAT:
                continue
            self.wire.read_payload([memoryview(bytearray(frame.payload_bytes))])
            message = decode(frame.body)
            assert isinstance(message, kind), message
            return message
        raise AssertionError(f"no {kind.__name__}")


@pytest.fixture
def ours() -> Iterator[ExitStack]:
    with ExitStack() as ours:
        yield ours


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_standby_is_told_why_there_is_no_state(ours: ExitStack) -> None:
    head = Head(ours)
    one = Standby(head, ours)
    head.server.send(StateWritten(head.wanted().folder, why_not="No space left on device"))
    assert one.hears(Refused).why == "the head could not write how the run stands: No space left on device"


def test_what_was_written_for_one_that_is_gone_is_not_the_next_ones(ours: ExitStack) -> None:
    """Training had not begun while the first waited."""
    head = Head(ours)
    gone = Standby(head, ours)
    first = head.wanted().folder
    gone.wire.cut()
    until(lambda: not head.standbys._states)
    one = Standby(head, ours, name=6)
    second = head.wanted().folder
    head.server.send(StateWritten(first, why_not="its folder is gone"))
    head.written(second)
    assert one.hears(Followed).files == 1
    assert one.hears(File).name == "state"


def test_a_standby_may_take_its_time_over_the_state(ours: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model's takes longer than a side may be silent."""
    monkeypatch.setattr(process, "LEASE_S", 0.2)
    head = Head(ours)
    one = Standby(head, ours)
    head.written(head.wanted().folder)
    one.hears(Followed)
    one.hears(File)
    time.sleep(0.6)
    one.says(Has(0))
    until(lambda: head.standbys._contending._electable == {5})
    head.standbys._over.set()
    one.hears(Over)


def test_one_that_takes_a_version_every_so_many_is_sent_no_log(ours: ExitStack) -> None:
    head = Head(ours)
    one = Standby(head, ours, every=3)
    first = head.wanted()
    head.written(first.folder)
    for version in (0, 4):
        one.hears(Followed)
        one.hears(File)
        one.says(Has(0))
        head.log.put(b"not to be sent")
        wanted = head.wanted()
        assert (first.after, wanted.after) == (0, version + 3)
        assert head.standbys._contending._electable == {5}
        (Path(wanted.folder) / "state").write_bytes(b"all")
        head.server.send(StateWritten(wanted.folder, 0, head.said, workers=2, version=4))
    one.hears(Followed)
    one.hears(File)
    one.says(Has(0))
    head.standbys._over.set()
    one.hears(Over)


def test_one_that_takes_versions_is_told_of_the_end_when_the_server_has_gone(ours: ExitStack) -> None:
    head = Head(ours)
    one = Standby(head, ours, every=3)
    head.written(head.wanted().folder)
    one.hears(Followed)
    one.hears(File)
    head.server.close()
    one.says(Has(0))
    until(lambda: head.standbys._contending._electable == {5})
    head.standbys._over.set()
    one.hears(Over)


@pytest.mark.parametrize("lives", [True, False], ids=["it beats", "its host is gone"])
def test_one_that_waits_for_a_version_says_that_it_is_there(
    lives: bool, ours: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions may take hours, and a host that dies closes nothing."""
    monkeypatch.setattr(process, "LEASE_S", 0.5)
    head = Head(ours)
    one = Standby(head, ours, every=3)
    head.written(head.wanted().folder)
    one.hears(Followed)
    one.hears(File)
    one.wire.send(FrameKind.BEAT, b"")  # it was on its way
    one.says(Has(0))
    until(lambda: head.standbys._contending._electable == {5})
    for _ in range(20 if lives else 0):
        one.wire.send(FrameKind.BEAT, b"")
        time.sleep(0.05)
    if lives:
        assert head.standbys._contending._electable == {5}
    until(lambda: head.standbys._contending._electable == set())


def test_two_that_came_at_once_do_not_drive_each_other_out(ours: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither was there when it was looked whether there is a place."""
    monkeypatch.setattr(process, "LEASE_S", 0.5)
    head = Head(ours)
    both = Standby(head, ours, every=3), Standby(head, ours, name=6, every=3)
    for _ in range(2):
        for folder in [head.wanted().folder for _ in both]:
            head.written(folder)
        for one in both:
            one.hears(Followed)
            one.hears(File)
            one.says(Has(0))
        until(lambda: head.standbys._contending._electable == {5, 6})
        for _ in range(30):  # longer than one waits for a place
            for one in both:
                one.wire.send(FrameKind.BEAT, b"")
            time.sleep(0.05)


def test_answers_cannot_wait_for_one_that_takes_versions(ours: ExitStack) -> None:
    head = Head(ours)
    head.standbys._waits = True
    one = Standby(head, ours, every=3)
    assert "leave --every-versions out" in one.hears(Refused).why


def test_one_that_comes_back_is_not_one_too_many(ours: ExitStack) -> None:
    """Its line was cut, which the head does not know yet."""
    head = Head(ours)
    one = Standby(head, ours)
    head.written(head.wanted().folder)
    one.hears(Followed)
    one.hears(File)
    one.says(Has(0))
    until(lambda: 5 in head.standbys._followers.awaited)
    again = Standby(head, ours)
    head.server.send(StateWritten(head.wanted().folder, 0, head.said, workers=2))
    again.hears(Followed)


def test_a_head_that_is_fenced_is_not_followed(ours: ExitStack) -> None:
    head = Head(ours)
    head.is_fenced()
    one = Standby(head, ours)
    with pytest.raises(ConnectionLostError):
        one.hears(Followed)


def test_a_head_that_is_fenced_answers_nobody(ours: ExitStack) -> None:
    """Under acknowledge="standby", once its standbys are gone, too."""
    head = Head(ours)
    head.standbys._followers._waits = True
    head.standbys._log = head.standbys._followers.log = log = ReplicationLog.create(1 << 16)
    head.is_fenced()
    until(lambda: log.has == 0)
