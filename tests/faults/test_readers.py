"""Readers of a run in which anything dies: what they have is always a version of the run, to the last bit."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.launch.local.readers_process import READERS_MAX
from plesio.launch.remote.find import token_of
from plesio.launch.remote.read import place_of
from plesio.protocol.reading import Open
from plesio.reading.line import LineLostError
from plesio.strategy import Strategy
from plesio.transport.limits import UNPROVEN_MAX
from support import loops
from support.loops import sgd
from support.programs import PYTHON, with_tests
from support.reading import Follower, followed, free_port, kept_checksums, seen_enough, until

RECIPES = [
    ps.async_sgd(),
    ps.sync_sgd(),
    ps.local_sgd(2),
    ps.buffered(2),
    ps.phases(ps.async_sgd("plain"), (60, ps.sync_sgd())),
]


def train(
    worker: ps.Worker, steps: int = 100_000, seen: Path | None = None, followers: int = 1, pause_s: float = 0.01
) -> None:
    """So many steps, or until so many have seen enough."""
    model = loops.batch_norm()
    model, optimizer = worker.prepare(model, sgd(model))
    inputs, labels = loops.data()
    for step in worker.steps(steps):
        if seen is not None and seen_enough(seen, followers):
            worker.stop("they have seen enough")
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[step % 80 :][:16]), labels[step % 80 :][:16]).backward()
        time.sleep(pause_s)
        optimizer.step()


def dies_soon(address: str, after_s: float) -> int:
    """A process that reads as fast as it can, and is killed."""
    if pid := os.fork():
        threading.Timer(after_s, os.kill, (pid, signal.SIGKILL)).start()
        return pid
    try:
        with ps.read(address) as reader:
            while reader.wait():
                pass
        signal.pause()
    finally:
        os._exit(1)


def run_with_deaths(strategy: Strategy, seed: int, runs: Path) -> int:
    """Kill the server, a worker and readers; how many versions readers saw."""
    rng = random.Random(seed)
    faults = [ps.Kill(worker=None, after_s=rng.uniform(0.1, 0.6)), ps.Kill(worker=2, after_s=rng.uniform(0, 0.6))]
    killed: list[int] = []
    with followed(runs / "seen", "", "tcp://") as (address, followers):
        moments = [rng.uniform(0.2, 1.5) for _ in range(2)]

        def look(live: Any) -> None:
            while moments and live.time_s > 0:
                killed.append(dies_soon(rng.choice(["", "tcp://"]) + address, moments.pop()))

        options: dict[str, Any] = {"faults": faults, "durability": "process", "watch": look}
        done = ps.run(partial(train, steps=150), strategy, workers=3, runs=runs, readers=address, **options)
    for pid in killed:
        os.waitpid(pid, 0)
    known = kept_checksums(done.folder)
    for one in followers:
        assert one.last == done.version
        assert {version: known.get(version, seen) for version, seen in one.seen.items()} == one.seen
        assert all(torch.equal(one.state[name], tensor) for name, tensor in done.state_dict.items())
    return sum(len(one.seen) for one in followers)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", RECIPES, ids=lambda one: one.name)
def test_no_snapshot_is_torn_or_wrong_whoever_dies(strategy: Strategy, tmp_path: Path) -> None:
    assert run_with_deaths(strategy, 1, tmp_path) > 20


@pytest.mark.thorough
def test_strangers_at_the_readers_door_do_no_harm(tmp_path: Path) -> None:
    """Wrong tokens, half-open connections, what is no message, and more connections than it takes: a reader goes on."""
    held: list[socket.socket] = []
    went_on: list[int] = []

    def attack(reader: Any) -> None:
        if held:
            went_on.append(reader.version)
            return
        host, port = reader._place.host, reader._place.port
        for _ in range(2 * UNPROVEN_MAX):
            held.append(socket.create_connection((host, port)))
        for one in held[:UNPROVEN_MAX]:
            one.send(os.urandom(48))
        with pytest.raises(ps.ProofError):
            ps.read(f"tcp://{host}:{port}", token=40 * "x", timeout_s=20)

    with followed(tmp_path, "", each=attack) as (address, _):
        ps.run(partial(train, seen=tmp_path), "async_sgd", workers=2, readers=address)
    for one in held:
        one.close()
    assert len(went_on) > 5


def talks(reader: Any, message: bytes) -> None:
    """Says something that is no question, over a line that has proved itself."""
    line = reader._place.dial()
    line._channel._socket.send(message)
    line._channel._socket.settimeout(20)
    assert line._channel._socket.recv(1) == b""
    line.close()


def test_a_reader_that_says_what_it_may_not_is_hung_up_on(tmp_path: Path) -> None:
    tried: list[bytes] = []

    def attack(reader: Any) -> None:
        if not tried:
            tried.extend([b"\xff" * 8, (5).to_bytes(4, "little") + bytes(4) + b"\x93\x01\x02\x03\x04"])
            for one in tried:
                talks(reader, one)

    with followed(tmp_path, "", each=attack) as (address, _):
        ps.run(partial(train, seen=tmp_path), "async_sgd", workers=2, readers=address)
    assert tried


def test_a_reader_that_comes_before_the_run_waits_for_it(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    follower = Follower(address, tmp_path / "enough-0")
    follower.start()
    time.sleep(0.3)
    done = ps.run(partial(train, seen=tmp_path), "sync_sgd", workers=2, readers=address)
    assert follower.done().last == done.version


def begins_late(worker: ps.Worker, begins: Path) -> None:
    until(begins.exists)
    train(worker, steps=5)


@pytest.mark.thorough
def test_those_who_hang_up_before_the_run_begins_leave_their_places(tmp_path: Path) -> None:
    """As many come as there may be, and hang up. One more is turned away until they are gone."""
    port, begins = free_port(), tmp_path / "begins"
    place = place_of("127.0.0.1", port, token_of(None), None)

    def is_there() -> bool:
        with suppress(OSError), place.dial():
            return True
        return False

    def has_a_place() -> bool:
        with place.dial() as line, suppress(LineLostError):
            line.say(Open("one", version("plesio")))
            return line.hear(1.0) is None
        return False

    def come() -> None:
        until(is_there)
        for line in [place.dial() for _ in range(READERS_MAX)]:
            line.close()
        until(has_a_place)
        begins.touch()

    threading.Thread(target=come, daemon=True).start()
    done = ps.run(partial(begins_late, begins=begins), "async_sgd", workers=1, readers=f"127.0.0.1:{port}")
    assert done.version == 5


HEAD = """
from functools import partial
from faults.test_readers import ps, train
if __name__ == "__main__":
    import sys
    options = dict(runs=sys.argv[1], readers=sys.argv[2], resume="newest", checkpoint=ps.Checkpoint(every_s=0.2))
    ps.run(partial(train, steps=600), "async_sgd", workers=2, **options)
"""


@pytest.mark.thorough
def test_a_reader_goes_on_with_the_next_head(tmp_path: Path) -> None:
    """The head is killed and started again at the other address. It goes on from its checkpoint, perhaps an earlier version."""
    taken, addresses = list[int](), [f"127.0.0.1:{free_port()}" for _ in range(2)]
    command, again = ([*PYTHON, "-c", HEAD, str(tmp_path), address] for address in addresses)
    follower = Follower(",".join(addresses), tmp_path / "enough", each=lambda reader: taken.append(reader.version))
    follower.start()
    head = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=with_tests())
    until(lambda: len(taken) > 5 and list(tmp_path.glob("*/checkpoints/*/manifest.json")))
    head.kill()
    head.wait()
    before = len(taken)
    subprocess.run(again, stderr=subprocess.DEVNULL, timeout=60, check=True, env=with_tests())
    assert follower.done().last == 600
    assert len(taken) > before
