"""Tables in runs: rows pulled from the server and stepped there, against torch's RPC; and a small DLRM against the same model
with `nn.Embedding(sparse=True)`, whose table every process holds.

One worker, 2,048 examples of 26 ids a step. Steps are timed between two that the same worker takes, after a warm-up.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import rpc
from torch.optim import SGD, Adagrad

import plesio as ps
from _report import Row, interleave, row

EXAMPLES, FIELDS, DIM, ROWS = 2048, 26, 16, 1_000_000
BATCHES, WARM, STEPS = 16, 20, 100
NAMES = ("server", "worker")


def batches() -> list[torch.Tensor]:
    """Log-uniform ids in fields of different sizes, those of the study: the largest field has .4 of all rows."""
    source = np.random.default_rng(0)
    sizes = np.maximum(8, 0.4 * ROWS / np.arange(1, FIELDS + 1) ** 2).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    drawn = [np.exp(source.random((EXAMPLES, FIELDS)) * np.log(sizes)) - 1 for _ in range(BATCHES)]
    return [torch.from_numpy(np.minimum(one.astype(np.int64), sizes - 1) + starts) for one in drawn]


def timed(step: Callable[[int], object]) -> tuple[float, float]:
    """Steps a second, and this process's CPU seconds a step."""
    for number in range(WARM):
        step(number)
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for number in range(STEPS):
        step(number)
    return STEPS / (time.perf_counter() - began_s), (time.process_time() - cpu_s) / STEPS


# Rows alone: pull, a gradient, push


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ids = ps.Table(DIM)
        self.top = nn.Linear(1, 1)  # a model has parameters

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.ids(ids)
        return rows


def pulls_and_pushes(worker: ps.Worker) -> tuple[float, float]:
    net = Rows()
    model, optimizer = worker.prepare(net, SGD(net.top.parameters(), lr=0.1))
    data, gradient = batches(), torch.full((EXAMPLES, FIELDS, DIM), 1e-3)

    def step(number: int) -> None:
        worker.count(EXAMPLES)
        model(data[number % BATCHES]).backward(gradient)
        optimizer.step()

    return timed(step)


class Server:
    """What one writes for torch's RPC: a sparse embedding with its optimizer, of which rows are asked for."""

    def __init__(self) -> None:
        self.embedding = nn.Embedding(ROWS, DIM, sparse=True)
        self.optimizer = Adagrad(self.embedding.parameters(), lr=0.05)

    def pull(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding.weight.detach()[ids]

    def push(self, ids: torch.Tensor, gradient: torch.Tensor) -> None:
        self.embedding.weight.grad = torch.sparse_coo_tensor(ids.unsqueeze(0), gradient, (ROWS, DIM), is_coalesced=True)
        self.optimizer.step()


def over_rpc(server: Any) -> Callable[[int], object]:
    """A step of the worker; `server` is torch's reference to a `Server`."""
    data, gradient = batches(), torch.full((EXAMPLES * FIELDS, DIM), 1e-3)

    def step(number: int) -> None:
        ids, positions = torch.unique(data[number % BATCHES], return_inverse=True)
        rows = server.rpc_sync().pull(ids)
        torch.nn.functional.embedding(positions, rows)
        sums = torch.zeros_like(rows).index_add_(0, positions.flatten(), gradient)
        server.rpc_sync().push(ids, sums)

    return step


def by_rpc(rank: int, port: int, found: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=2)
    if rank == 1:
        found.put(timed(over_rpc(rpc.remote(NAMES[0], Server))))
    rpc.shutdown()


def rpc_rate() -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    found = context.SimpleQueue()
    processes = mp.spawn(by_rpc, (port, found), nprocs=2, join=False)
    rate: float = found.get()[0]
    processes.join()
    return rate


def exchange(quick: bool, runs: int) -> list[Row]:
    """Steps a second in which rows are pulled, and their gradients pushed."""
    ours = partial(first_of, pulls_and_pushes)
    found = interleave({"ours": ours, "rpc": rpc_rate}, 1 if quick else runs)
    return [
        row(
            f"pull + push of {EXAMPLES:,} x {FIELDS} ids, shared memory", found["ours"], "steps/s",
            against="torch RPC", against_values=found["rpc"], target=">= 3",
        )
    ]  # fmt: skip


# A small DLRM


class Tower(nn.Module):
    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.ids = embedding
        self.top = nn.Sequential(nn.Linear(FIELDS * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.top(self.ids(ids).flatten(1))
        return found[:, 0]


class Given(nn.Module):
    """The same rows for all ids, with gradients that nobody takes: what is left is the tower."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.randn(EXAMPLES, FIELDS, DIM, requires_grad=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.rows.grad = None
        return self.rows


KINDS: dict[str, Callable[[], nn.Module]] = {
    "table": lambda: ps.Table(DIM),
    "embedding": lambda: nn.Embedding(ROWS, DIM, sparse=True),
    "tower": Given,
}


def trains(worker: ps.Worker, kind: str) -> tuple[float, float]:
    torch.manual_seed(0)
    net = Tower(KINDS[kind]())
    held = net.parameters() if kind == "embedding" else net.top.parameters()
    model, optimizer = worker.prepare(net, Adagrad(held, lr=0.05))
    data, labels = batches(), torch.randint(0, 2, (EXAMPLES,)).float()

    def step(number: int) -> None:
        worker.count(EXAMPLES)
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(data[number % BATCHES]), labels).backward()
        optimizer.step()

    rate, _ = timed(step)
    return rate, float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def alone(train: Callable[[ps.Worker], tuple[float, float]]) -> tuple[float, float]:
    """What the only worker of a run returned."""
    found: tuple[float, float] = ps.run(train, "async_sgd", workers=1, progress=False).returned[0]
    return found


def first_of(train: Callable[[ps.Worker], tuple[float, float]]) -> float:
    return alone(train)[0]


def dlrm(quick: bool, runs: int) -> list[Row]:
    """The same script with a table, with an embedding in every process, and with no rows at all: more steps there cannot be."""
    loops = {kind: partial(trains, kind=kind) for kind in KINDS}
    memory: dict[str, list[float]] = {name: [] for name in loops}

    def rate(name: str) -> float:
        steps_per_s, nbytes = alone(loops[name])
        memory[name].append(nbytes / 1e6)
        return steps_per_s

    found = interleave({name: partial(rate, name) for name in loops}, 1 if quick else runs)
    rival = "nn.Embedding(sparse=True) in plesio"
    return [
        row(
            f"DLRM, {EXAMPLES:,} examples a step", found["table"], "steps/s",
            against=rival, against_values=found["embedding"], target=">= 3",
        ),
        row("the same: the tower alone", found["tower"], "steps/s", against=rival, against_values=found["embedding"]),
        row("the same: memory of a worker", memory["table"], "MB", against=rival, against_values=memory["embedding"]),
    ]  # fmt: skip
