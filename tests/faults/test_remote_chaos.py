"""The long form of faults between hosts: what each sample did to the weights is recomputed from them."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from faults.test_remote import begun, meanwhile, until
from plesio.server.checkpoints import kept_in
from plesio.transport.limits import LEASE_S
from support import remote
from support.proxy import Proxy
from support.row_each import row_each

WORKERS, SAMPLES, BATCH = 2, 960, 4
pytestmark = pytest.mark.slow


def visiting(worker: ps.Worker, into: Path, epochs: int, pause_s: float = 0.004) -> None:
    """Each sample has a row of its own in the model, from which each fold of it takes 1."""
    model, optimizer, loader = row_each(worker, SAMPLES, BATCH, lr=float(WORKERS))
    for _ in range(epochs):
        for (samples,) in loader:
            optimizer.zero_grad()
            model(samples).sum().backward()
            time.sleep(pause_s)
            optimizer.step()
            (into / f"at-{os.getpid()}").write_text(str(worker.version))


def checkpoints(runs: Path) -> bool:
    """Whether the one run in there has kept one."""
    return any(kept_in(str(folder / "checkpoints")) for folder in runs.glob("*"))


def visits(run: ps.Run) -> torch.Tensor:
    """How often each sample is in the weights."""
    return -run.state_dict["weight"].flatten()


@pytest.mark.parametrize("strategy", [ps.async_sgd("plain"), ps.sync_sgd()], ids=lambda one: one.name)
def test_a_server_killed_at_25_random_moments_folds_each_batch_once(strategy: ps.Strategy, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"workers": WORKERS, "checkpoint": ps.Checkpoint(every_s=0.1)}
    rng, epochs, resume = random.Random(strategy.name), 16, None
    with remote.head(rejoin_s=60.0) as head:
        for rank in range(WORKERS):
            head.fork(functools.partial(visiting, into=tmp_path, epochs=epochs), rank=rank)
        for life in range(25):
            runs = tmp_path / f"life {life}"

            def kill(runs: Path = runs, first: bool = not life) -> None:
                for told in tmp_path.glob("at-*"):
                    told.unlink()
                until(lambda: begun(tmp_path, WORKERS, version=0))
                until(lambda: not first or checkpoints(runs))  # a head that has none begins anew, from trained weights
                time.sleep(rng.uniform(0.0, 0.6))
                os.kill(head.server_pid(), signal.SIGKILL)

            with meanwhile(kill), pytest.raises(ps.ServerLostError):
                head.run(strategy, **settings, durability="none", runs=runs, resume=resume)
            resume = next(iter(runs.iterdir())) if checkpoints(runs) else resume
            head.reopen()
        done = head.run(strategy, **settings, runs=tmp_path / "last", resume=resume)
        assert head.end() == [0] * WORKERS
    assert torch.equal(visits(done), torch.full((SAMPLES,), float(epochs)))
    assert done.batches_unvisited == 0


def silent(ways: str, for_s: float) -> Callable[[Proxy], None]:
    def fault(proxy: Proxy) -> None:
        proxy.silent = frozenset(ways.split())
        time.sleep(for_s)
        proxy.silent = frozenset()

    return fault


def slow(proxy: Proxy) -> None:
    """200 kB/s, 20 ms late."""
    proxy.becomes = lambda chunk: (time.sleep(0.02 + len(chunk) / 200e3), chunk)[1]
    time.sleep(8.0)
    proxy.becomes = bytes


def damaged(how: Callable[[bytes], bytes]) -> Callable[[Proxy], None]:
    """Ten times, one chunk comes otherwise than it was sent."""

    def fault(proxy: Proxy) -> None:
        for _ in range(10):

            def once(chunk: bytes) -> bytes:
                proxy.becomes = bytes
                return how(chunk)

            proxy.becomes = once
            time.sleep(random.uniform(0.1, 0.4))

    return fault


def flipped(chunk: bytes) -> bytes:
    place = random.randrange(len(chunk))
    return chunk[:place] + bytes([chunk[place] ^ 1 << random.randrange(8)]) + chunk[place + 1 :]


def swapped(chunk: bytes) -> bytes:
    half = len(chunk) // 2
    return chunk[half:] + chunk[:half]


FAULTS = {
    "nothing comes up for 2 s": silent("up", 2.0),
    "nothing comes up for longer than the lease": silent("up", LEASE_S + 1.5),
    "nothing goes down for longer than the lease": silent("down", LEASE_S + 1.5),
    "half open": silent("up down", LEASE_S + 1.5),
    "slow": slow,
    "bits flipped": damaged(flipped),
    "chunks doubled": damaged(lambda chunk: chunk * 2),
    "chunks lost": damaged(lambda chunk: b""),
    "chunks swapped": damaged(swapped),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_bad_link_folds_each_batch_once(fault: Callable[[Proxy], None], tmp_path: Path) -> None:
    epochs = 8
    with remote.head(rejoin_s=60.0) as head:
        proxy = Proxy(head.port)
        for rank, port in enumerate((head.port, proxy.port)):
            head.address = f"tcp://127.0.0.1:{port}"
            head.fork(functools.partial(visiting, into=tmp_path, epochs=epochs), rank=rank)

        def disturb() -> None:
            until(lambda: begun(tmp_path, WORKERS))
            fault(proxy)

        with meanwhile(disturb):
            done = head.run(ps.async_sgd("plain"), workers=WORKERS)
        assert head.end() == [0, 0]
        proxy.close()
    assert torch.equal(visits(done), torch.full((SAMPLES,), float(epochs)))
    assert done.batches_unvisited == 0
