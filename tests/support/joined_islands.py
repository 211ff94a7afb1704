"""Islands whose ranks somebody else started: a training function, and a script for torchrun.

    joined_islands.py FOLDER VICTIM

Rank 1 of the worker `VICTIM` kills itself once, in its fifth step. The other worker goes on, and waits near its end until the
successor trains.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

SAMPLES, BATCH, EPOCHS = 96, 12, 4
ALONE = 3 * SAMPLES // BATCH  # steps that a worker whose fellow died takes before it waits for the successor
WAIT_S = 60.0


def data() -> TensorDataset:
    inputs = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 16))


def train(worker: ps.Worker, inside: str = "fsdp", each: Callable[[int], None] = lambda step: None) -> None:
    """`each` is called in each step, before the optimizer's. Without ranks: by halves of each batch, so that sums have the same
    order."""
    model = build()
    if inside == "fsdp":
        fully_shard(model, mesh=worker.island.mesh)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader: Any = DataLoader(data(), batch_size=BATCH)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    net = nn.parallel.DistributedDataParallel(model) if inside == "ddp" else model
    step, parts = 0, 1 if inside else 2
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            step += 1
            optimizer.zero_grad()
            for some, of in zip(inputs.chunk(parts), labels.chunk(parts), strict=True):
                (nn.functional.cross_entropy(net(some), of) / parts).backward()
            each(step)
            optimizer.step()


def train_or_die(worker: ps.Worker, folder: Path, victim: int) -> None:
    """As the script says."""
    died, back = folder / "died", folder / "back"
    successor = died.exists()

    def each(step: int) -> None:
        if worker.rank == victim and not successor and step == 5 and worker.island.rank == 1:
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if worker.rank == victim and successor and step == 2:
            back.touch()
        if worker.rank != victim and step == ALONE:
            wait_for(back)

    train(worker, each=each)


def wait_for(file: Path) -> None:
    until(file.exists, f"nobody wrote {file}")


def until(condition: Callable[[], bool], why: str = "it did not come to that") -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, why
        time.sleep(0.02)


def as_rank(rank: int, ranks: int, port: int) -> Callable[[], None]:
    """What makes a process that rank, with no launcher but these variables; rank 0 makes the store."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    return lambda: os.environ.update({"MASTER_ADDR": "127.0.0.1"} | {name: str(one) for name, one in told.items()})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


if __name__ == "__main__":
    torch.set_num_threads(1)
    with ps.join(island=True) as worker:
        train_or_die(worker, Path(sys.argv[1]), int(sys.argv[2]))
