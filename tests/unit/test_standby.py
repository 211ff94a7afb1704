"""A standby, and a head that the test speaks for."""

from __future__ import annotations

import dataclasses
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from plesio.core.headship import ANYBODY
from plesio.errors import CheckpointError, ServerLostError
from plesio.launch.job import Listening
from plesio.launch.local.listen import DoorSockets
from plesio.launch.standby.standby import RunOver, Standby
from plesio.protocol.coding import encode
from plesio.protocol.replication import Challenge, Over
from plesio.transport.socket_wire import SocketWire
from plesio.transport.wire import ConnectionLostError, FrameKind

NOBODY = ("127.0.0.1", 1)


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    door = DoorSockets.open(
        Listening(host="127.0.0.1", port=0, token="a token of the tests, long enough", credentials=None, rejoin_s=60.0)
    )
    one = Standby([NOBODY], door, tmp_path)
    yield one
    one._contending.close()
    for each in door.sockets:
        each.close()


def test_leaves_nothing_where_there_is_no_head(standby: Standby, tmp_path: Path) -> None:
    with pytest.raises(ServerLostError, match=r"no head: tried to reach 127\.0\.0\.1:1 for"):
        standby.wait(0.1)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_cannot_be_written_is_said_in_words(standby: Standby, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="give another folder"):
        Standby([NOBODY], standby._door, tmp_path / "file" / "runs")


def test_what_it_has_is_kept_where_nobody_goes_on(standby: Standby, tmp_path: Path) -> None:
    """It was elected, and whoever voted for it is gone."""
    standby._elected.set()
    standby._contending.close()
    standby._contending = Mock(awaits={ANYBODY}, leads_until_s=0.0)
    standby._door = DoorSockets(dataclasses.replace(standby._door.listening, rejoin_s=0.1), standby._door.sockets)
    standby._shadow = Mock(version=7, **{"write.return_value": standby._copy})
    with pytest.raises(ServerLostError, match=r"could not be reached for 0\.1 s; to go on from version 7"):
        standby.wait(60.0)
    assert [*tmp_path.iterdir()] == [standby._copy]


def test_what_it_began_from_is_kept_where_the_newest_version_cannot_be_written(
    standby: Standby, tmp_path: Path
) -> None:
    standby._elected.set()
    standby._contending.close()
    standby._contending = Mock(awaits=(), leads_until_s=math.inf)
    standby._followed, standby._shadow = Mock(), Mock(version=7, **{"write.side_effect": OSError("no space left")})
    with pytest.raises(CheckpointError, match="no space left"):
        standby.wait(60.0)
    assert [*tmp_path.iterdir()] == [standby._copy]


@pytest.mark.parametrize("in_time", [True, False])
def test_one_that_is_elected_waits_for_no_state(standby: Standby, in_time: bool) -> None:
    """The head's host dies while it waits for it, and the log that it has is the one to go on with."""
    left, right = socket.socketpair()
    head = SocketWire(left, "a standby")
    head.send(FrameKind.CHANNEL, encode(Challenge(b"nonce")))
    began_s = time.monotonic()
    if in_time:
        threading.Timer(0.2, standby._elected.set).start()
    with closing(SocketWire(right, "the head")) as wire, closing(head):
        if not in_time:
            monkey = pytest.MonkeyPatch()
            monkey.setattr("plesio.launch.standby.standby.LEASE_S", 0.5)
        with pytest.raises(ConnectionLostError, match="elected" if in_time else "said nothing for 0.5 s"):
            standby._begin(wire)
        if not in_time:
            monkey.undo()
    assert time.monotonic() - began_s < 5.0


def test_one_that_took_long_over_a_version_waits_for_the_next(
    standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a lease: of a large model, whose head had nothing to say meanwhile."""
    monkeypatch.setattr("plesio.launch.standby.standby.BEAT_S", 0.05)
    left, right = socket.socketpair()
    standby._heard_s = time.monotonic() - 60.0
    standby._followed = Mock(begins=7)
    with closing(SocketWire(right, "the head")) as wire, closing(SocketWire(left, "a standby")) as head:
        threading.Timer(0.5, head.send, (FrameKind.CHANNEL, encode(Over()))).start()
        with pytest.raises(RunOver):
            standby._follow_versions(wire)
        said = [head.receive(1.0) for _ in range(2)]
    assert [one and one.kind for one in said] == [FrameKind.CHANNEL, FrameKind.BEAT]
