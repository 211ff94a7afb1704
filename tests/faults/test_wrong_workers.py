"""Workers that say what they may not, or are not like the others: the run of the others goes on, and all counts are exact."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from faults.test_remote import begun, counting, joined, meanwhile, until
from plesio import __version__
from plesio.launch.remote.link import WorkerLink, persist
from plesio.protocol import launcher, remote
from plesio.protocol.coding import encode
from plesio.protocol.worker import Contribution, DroppedStep, Farewell, LeaseRequest, Ready, WorkDone
from plesio.tensors.arena import Layout
from plesio.transport.connect import connect
from plesio.transport.wire import FrameKind
from plesio.worker.introduction import Taking, introduction
from support.loops import CLASSES, FEATURES, data
from support.proxy import Proxy
from support.remote import TOKEN, Head, head


class Wrong:
    """A worker that has proved to know the token, and takes the second seat; then it says anything."""

    def __init__(self, head: Head, model: nn.Module | None = None) -> None:
        self._dial = lambda ticket: connect("127.0.0.1", head.port, TOKEN, None, ticket)
        model = model or nn.Linear(FEATURES, CLASSES)
        self.hello = introduction(
            1, ps.async_sgd(), Taking(model, torch.optim.SGD(model.parameters(), lr=0.05)), False
        )[0]
        layout = Layout(self.hello.model.specs)
        self.whole = memoryview(bytearray(layout.nbytes))
        self.moving = memoryview(bytearray(layout.stretches(())[-1][1]))
        knock = remote.Knock("nowhere:7", __version__, rank=1)
        self.link = persist(lambda: WorkerLink(self._dial, knock, 5.0), lambda: 10.0, knock.who)

    def say(self, kind: FrameKind, message: object, payload: int | bytes = 0) -> None:
        self.link.send(kind, encode(message), [memoryview(bytearray(payload))] if payload else ())

    def push(self, number: int, payload: int | None = None, **fields: Any) -> None:
        made = Contribution(number=number, steps=1, samples=0, **fields)
        self.say(FrameKind.DOORBELL, made, self.moving.nbytes if payload is None else payload)

    def hear(self) -> None:
        assert self.link.receive(20.0, lambda one: [self.whole[: one.payload_bytes]]), "nothing came"

    def take_part(self) -> None:
        self.say(FrameKind.CHANNEL, self.hello)
        self.hear()
        self.say(FrameKind.CHANNEL, Ready())
        self.hear()


def hellos(wrong: Wrong) -> None:
    wrong.say(FrameKind.CHANNEL, wrong.hello)


def pushes(*numbers: int, **fields: Any) -> Callable[[Wrong], None]:
    def push(wrong: Wrong) -> None:
        for number in numbers:
            wrong.push(number, **fields)

    return push


def says(kind: FrameKind, message: object, payload: int = 0) -> Callable[[Wrong], None]:
    return lambda wrong: wrong.say(kind, message, payload)


BELL, CHANNEL, LAUNCHER = FrameKind.DOORBELL, FrameKind.CHANNEL, FrameKind.LAUNCHER
OTHER_SETTINGS = msgspec.msgpack.encode([{"lr": "fast"}])
TURN = "out of turn"
IN_TRAINING: list[tuple[Callable[[Wrong], None], str]] = [
    (hellos, TURN),
    (pushes(2), "Contribution out of turn, after .*1 Beginning"),
    (pushes(1, payload=8), "8 bytes with Contribution; .* were expected"),
    (pushes(1, payload=0), "0 bytes with Contribution; .* were expected"),
    (pushes(1, settings=OTHER_SETTINGS), "the settings of its optimizer are not like"),
    (pushes(1, settings=b"\xc1"), "no message"),
    (pushes(1, batches=-1), "no message"),
    (pushes(1, worked_s=float("nan")), "no message"),
    (says(CHANNEL, Ready()), TURN),
    (says(CHANNEL, Ready(), 4096), TURN),
    (says(CHANNEL, LeaseRequest(0, 1 << 40, 1, 0, 0)), "no message"),
    (says(CHANNEL, Farewell()), "no message"),
    (says(BELL, DroppedStep(1)), TURN),
    (says(BELL, Farewell(), 64), "64 bytes with Farewell; 0 were expected"),
    (says(BELL, WorkDone(steps=1)), "no message"),
    (says(BELL, {"anything": 1}), "no message"),
    (says(LAUNCHER, launcher.Begun()), "no message"),
    (says(LAUNCHER, launcher.LoggedByWorker(float("nan"), 1, {})), "no message"),
    (says(FrameKind.PULL, remote.Pull()), TURN),
    (says(FrameKind.ANSWER, None), "a frame of kind ANSWER, which it may not"),
    (says(FrameKind.SESSION, remote.Resume(0)), TURN),
]
BEFORE: list[tuple[Callable[[Wrong], None], str]] = [
    (says(CHANNEL, Ready()), TURN),
    (says(CHANNEL, LeaseRequest(0, 1, 1, 0, 0)), TURN),
    (pushes(1), TURN),
]


@pytest.mark.thorough
def test_a_worker_that_says_what_it_may_not_is_hung_up_on(tmp_path: Path) -> None:
    told = []
    with head() as door:
        door.fork(functools.partial(counting, into=tmp_path, epochs=1, pause_s=0.01), rank=0)

        def attack() -> None:
            for take_part, cases in ((True, IN_TRAINING), (False, BEFORE)):
                for say, why in cases:
                    wrong = Wrong(door)
                    if take_part:
                        wrong.take_part()
                    say(wrong)
                    with pytest.raises(ps.PlesioError) as caught:
                        wrong.hear()
                    wrong.link.close()
                    told.append((why, str(caught.value)))

        with meanwhile(attack):
            done = door.run("async_sgd", workers=2)
        assert door.end() == [0]
    for why, said in told:
        assert re.search(f"the head hung up: .*{why}", said)
    assert (done.version, done.steps, done.batches_unvisited) == (240, 240, 0)
    hung_up_on = [one.what for one in done.incidents if "worker 1 was hung up on: " in one.what]
    assert len(hung_up_on) == len(told) == len(IN_TRAINING) + len(BEFORE)


@pytest.mark.thorough
def test_connections_that_are_cut_while_they_resume_or_damaged_lose_no_seat(tmp_path: Path) -> None:
    with head() as door:
        proxy = Proxy(door.port)
        door.address = f"tcp://127.0.0.1:{proxy.port}"
        door.fork(functools.partial(counting, into=tmp_path, epochs=3), rank=0)

        def cut() -> None:
            until(lambda: begun(tmp_path, 1))
            for limits in (
                [10, 40],
                [60, 97],
                [105, 130],
                [140, 160],
            ):  # at the door, at the proof, in Resumed, after it
                proxy.limits = limits
                proxy.cut()
                until(lambda: not proxy.limits)
                time.sleep(0.3)
            proxy.damages = 4
            until(lambda: not proxy.damages)

        with meanwhile(cut):
            done = door.run("async_sgd", workers=1, runs=tmp_path / "runs")
        assert door.end() == [0]
        proxy.close()
    assert joined(done) == [(0, 1)]
    assert (done.version, done.steps, done.batches_unvisited) == (720, 720, 0)


@pytest.mark.thorough
def test_steps_that_are_called_off_survive_cuts(tmp_path: Path) -> None:
    """The parameters that go with such an answer are asked for, and asked for again."""
    with head() as door:
        proxy = Proxy(door.port)
        door.address = f"tcp://127.0.0.1:{proxy.port}"
        for rank in range(3):
            train = functools.partial(counting, into=tmp_path, epochs=2, pause_s=0.004 * (1 + rank))
            door.fork(train, rank=rank)

        def cut() -> None:
            until(lambda: begun(tmp_path, 3))
            for _ in range(25):
                proxy.cut()
                time.sleep(0.02)

        with meanwhile(cut):
            done = door.run("first_of", workers=3, timeout_s=30.0, runs=tmp_path / "runs")
        assert door.end() == [0, 0, 0]
        proxy.close()
    assert sorted(joined(done)) == [(0, 1), (1, 1), (2, 1)]
    assert (done.folded, done.batches_unvisited) == (480, 0)


def finishing(worker: Any, into: Path) -> None:
    counting(worker, into, epochs=1)
    (into / "finished").touch()


@pytest.mark.thorough
def test_a_connection_that_is_cut_at_the_end_costs_nothing(tmp_path: Path) -> None:
    with head() as door:
        proxy = Proxy(door.port)
        door.address = f"tcp://127.0.0.1:{proxy.port}"
        door.fork(functools.partial(finishing, into=tmp_path), rank=0)

        def cut() -> None:
            until((tmp_path / "finished").exists)
            for _ in range(5):
                proxy.cut()

        with meanwhile(cut):
            done = door.run("async_sgd", workers=1)
        assert door.end() == [0]
        assert door.warnings() == ""
        proxy.close()
    assert (done.version, done.batches_unvisited) == (240, 0)
    assert [one.left for one in done.workers] == ["finished"]


def other_model(worker: Any) -> None:
    model = nn.Linear(3, CLASSES)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))


def other_data(worker: Any) -> None:
    model = nn.Linear(FEATURES, CLASSES)
    loader = DataLoader(TensorDataset(*data(17)), batch_size=4)
    next(iter(worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)[2]))


@pytest.mark.thorough
@pytest.mark.parametrize("far", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["remote", "of this host"])
def test_a_latecomer_that_is_not_like_the_others_is_refused_alone(tmp_path: Path, far: bool) -> None:
    with head(far) as door:
        train = functools.partial(counting, into=tmp_path, epochs=2, pause_s=0.01)
        pids = [door.fork(train, rank=rank) for rank in range(2)]
        open_files: list[int] = []

        def replace() -> None:
            until(lambda: begun(tmp_path, 2))
            os.kill(pids[1], signal.SIGKILL)
            for wrong in (other_model, other_data):
                pid = door.fork(wrong, rank=1)
                until(lambda pid=pid: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
                time.sleep(0.2)
                open_files.append(len(os.listdir("/proc/self/fd")))
            door.fork(train, rank=1)

        with meanwhile(replace):
            done = door.run("async_sgd", workers=2, on_worker_error="raise")
        assert door.end() == [0, -signal.SIGKILL, 1, 1, 0]
    assert (done.version, done.batches_unvisited) == (480, 0)
    for why in ("weight: wanted shape", "its loader has 5 batches an epoch, another worker's 240"):
        assert re.search(why, door.warned)
        assert any(re.search(f"worker 1 was refused .*{why}.*the others go on", one.what) for one in done.incidents)
    assert open_files[0] == open_files[1]
