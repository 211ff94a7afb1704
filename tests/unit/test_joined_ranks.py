"""What the ranks of an island that joined are told by their environment, and what one of them may say to its proxy."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import plesio as ps
from plesio.launch.local.islands import Ties
from plesio.launch.local.rank_proxy import RankProxy
from plesio.launch.remote.ranks import Ranks
from plesio.protocol import remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, encode
from plesio.protocol.launcher import Finished
from plesio.system.memory import SharedBlock
from plesio.tensors.arena import Kind, Layout, TensorSpec
from plesio.tensors.model import Described
from plesio.tensors.region import Region
from plesio.transport.channel import Channel, channel_pair
from plesio.transport.session import Session
from plesio.transport.socket_wire import SocketWire
from plesio.transport.wire import FrameKind

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
SPECS = (
    TensorSpec("w", (4, 2), "float32", Kind.TRAINED, 0),
    TensorSpec("f", (2,), "float32", Kind.FROZEN, 0),
)
LAYOUT = Layout(SPECS)
WORKERS, BUFFERS = 2, 3
LOWER_HALF = (Region((2, 0), (2, 2)), Region((1,), (1,)))


def test_ranks_are_what_torchrun_says() -> None:
    one = Ranks.here({**TORCHRUN, "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert (one.rank, one.ranks, one.local_rank, one.agent, one.spread) == (1, 4, 1, True, True)
    assert not Ranks.here(TORCHRUN).spread


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not in the environment"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4 of WORLD_SIZE=4"),
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "WORLD_SIZE='two' in the environment: a whole number was wanted"),
    ],
)
def test_an_environment_that_names_no_rank_is_refused(environment: dict[str, str], why: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=why):
        Ranks.here(environment)


def test_an_island_that_nothing_tells_where_its_run_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLESIO_JOIN", raising=False)
    agent = {"TORCHELASTIC_RUN_ID": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**TORCHRUN, **agent}.items():
        monkeypatch.setenv(name, value)
    refused = pytest.raises(ps.ConfigurationError, match="start a head with plesio serve, and set PLESIO_JOIN")
    with refused, ps.join(island=True):
        pass


class Between:
    """The proxy of a rank in a thread, and all ends of its lines. It is of worker 1, whose slot is the second."""

    def __init__(self) -> None:
        lines, (near, far) = [channel_pair(), channel_pair()], socket.socketpair()
        self.launcher: Channel[Any] = Channel(lines[0][0], remote.FromProxy, "the proxy")
        self.leader = Ties(0, [lines[1][0].detach()])
        self.far = Session(SocketWire(far, "the head"), "the head")
        job: Any = SimpleNamespace(config=SimpleNamespace(seats=WORKERS, strategy=ps.local_sgd(2)))
        self._session = Session(SocketWire(near, "far"), "far")
        to_launcher: Channel[Any] = Channel(lines[0][1], remote.ToProxy, "the launcher")
        self.ring = SharedBlock.create(BUFFERS * LAYOUT.nbytes, "a ring")
        self.slots = SharedBlock.create(WORKERS * LAYOUT.nbytes, "slots")
        self._proxy = RankProxy(job, 1, to_launcher, [lines[1][1].detach()], self._session)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        board = os.dup(self.ring.fd)
        model = Described(SPECS, ())
        self.leader.hand(messages.Hello(1, model, (), b""))
        self.leader.hand(messages.Welcome(BUFFERS, first=True), [self.ring.fd, self.slots.fd, board])
        os.close(board)
        assert self.came().kind is FrameKind.CHANNEL

    def _run(self) -> None:
        try:
            self._proxy.run()
        except BaseException as error:
            self.error = error

    def came(self, into: bytearray | None = None) -> Any:
        frame = self.far.receive(10.0)
        assert frame is not None
        if frame.payload_bytes:
            self.far.read_payload([memoryview(into or bytearray(frame.payload_bytes))])
        return frame

    def says(self, kind: FrameKind, message: object, payload: bytes = b"") -> None:
        self.far.send(kind, encode(message), [memoryview(payload)] if payload else ())

    def ended(self) -> BaseException | None:
        self._thread.join(10.0)
        return self.error

    def close(self) -> None:
        self.launcher.close()
        self.far.close()
        self._thread.join(10.0)
        self._session.close()
        for one in (*self.leader.channels, self._proxy._tie, self._proxy._launcher):
            one.close()
        self.ring.close()
        self.slots.close()


@pytest.fixture
def between() -> Iterator[Between]:
    one = Between()
    yield one
    one.close()


def test_a_mate_moves_its_own_part_and_nothing_else(between: Between) -> None:
    between.says(FrameKind.CHANNEL, remote.Holds(LOWER_HALF))
    between.says(FrameKind.TENSORS, remote.Put(), bytes(range(1, 17)))
    assert between.came().kind is FrameKind.TENSORS  # it lies there
    slots = between.slots.memory.numpy().tobytes()
    assert [at for at, value in enumerate(slots) if value] == [LAYOUT.nbytes + at for at in range(16, 32)]
    between.says(FrameKind.TENSORS, remote.Put(slot=False, copy=2), bytes(range(1, 21)))  # frozen ones, too
    between.came()
    got = bytearray(20)
    between.says(FrameKind.PULL, remote.Get(2, all=True))
    between.came(got)
    assert got == bytes(range(1, 21))
    between.says(FrameKind.LAUNCHER, Finished())
    assert between.launcher.receive(10.0)[0] == Finished()


def test_what_training_begins_with_is_not_overwritten_later(between: Between) -> None:
    between.says(FrameKind.CHANNEL, remote.Holds(LOWER_HALF))
    between.leader.hand(messages.Ready())
    for _ in range(100):  # until it has heard that
        between.says(FrameKind.TENSORS, remote.Put(slot=False), bytes(20))
        between.far.receive(0.1)
        if between.error is not None:
            break
    assert "out of turn" in str(between.ended())


HOLDS = FrameKind.CHANNEL, remote.Holds(LOWER_HALF), b""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([(FrameKind.TENSORS, remote.Put(), bytes(16))], "it said Put out of turn"),
        (
            [(FrameKind.CHANNEL, remote.Holds((Region((3, 0), (2, 2)), LOWER_HALF[1])), b"")],
            "no part of its worker's model",
        ),
        (
            [(FrameKind.CHANNEL, remote.Holds((Region((-1, 0), (2, 2)), LOWER_HALF[1])), b"")],
            "no part of its worker's model",
        ),
        ([(FrameKind.CHANNEL, remote.Holds(LOWER_HALF[:1]), b"")], "no part of its worker's model"),
        ([HOLDS, HOLDS], "no part of its worker's model"),
        ([HOLDS, (FrameKind.TENSORS, remote.Put(), bytes(20))], "it sent 20 bytes with Put; 16 were expected"),
        ([HOLDS, (FrameKind.TENSORS, remote.Put(slot=False, copy=BUFFERS), bytes(20))], "Put out of turn"),
        ([HOLDS, (FrameKind.PULL, remote.Get(-1, all=False), b"")], "Get out of turn"),
        ([(FrameKind.DOORBELL, messages.Farewell(), b"")], "a frame of kind DOORBELL, which it may not"),
    ],
)
def test_what_a_mate_may_not_say_ends_its_proxy(between: Between, said: list[Any], why: str) -> None:
    for one in said:
        between.says(*one)
    error = between.ended()
    assert isinstance(error, ProtocolError)
    with pytest.raises(ProtocolError, match=why):
        raise error
