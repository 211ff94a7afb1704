"""Training functions for workers that are several processes, and the same for one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

SAMPLES, BATCH = 96, 12
Make = Callable[[ps.Worker], nn.Module]


def data() -> TensorDataset:
    inputs = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def build() -> nn.Module:
    layers = nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3)
    return nn.Sequential(*layers).double()


def split(worker: ps.Worker, model: nn.Module, inside: str) -> None:
    """Split the model before prepare as `inside` says."""
    if inside == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0], mesh=worker.island.mesh)  # type: ignore[index]
        fully_shard(model, mesh=worker.island.mesh)
    if inside == "tp":
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        by_layer = {
            "0": ColwiseParallel(output_layouts=Replicate()),
            "3": RowwiseParallel(input_layouts=Replicate()),
        }
        parallelize_module(model, worker.island.mesh_of(tp=worker.island.ranks), by_layer)
    if inside == "fsdp and tp":
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        mesh = worker.island.mesh_of(dp=2, tp=2)
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(output_layouts=Replicate())})
        fully_shard(model, mesh=mesh["dp"])


def train(worker: ps.Worker, inside: str = "", epochs: int = 2, shuffle: bool = True, clip: float = 0.0) -> None:
    model = build()
    split(worker, model, inside)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader: Any = DataLoader(data(), batch_size=BATCH, shuffle=shuffle)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    net = nn.parallel.DistributedDataParallel(model) if inside == "ddp" else model
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            worker.log(loss=loss)


def dying(worker: ps.Worker, at: str, rank: int, how: str = "kill") -> None:
    """As `train` with FSDP2, but one rank of worker 1 ends `at` its fifth step, or at the start."""

    def end() -> None:
        if (worker.rank, worker.island.rank) != (1, rank):
            return
        if how == "raise":
            raise KeyError("on purpose")
        os.kill(os.getpid(), signal.SIGKILL)

    model = build()
    if at == "start":
        end()
    split(worker, model, "fsdp")
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(data(), batch_size=BATCH))
    steps = 0
    for _ in range(4):
        for inputs, labels in loader:
            steps += 1
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            if at == "backward" and steps == 5:
                loss.register_hook(lambda _: end())
            loss.backward()
            if steps == 5 and at in ("agreed", "answered"):
                _end_within(worker, at, end)
            optimizer.step()


def _end_within(worker: ps.Worker, at: str, end: Callable[[], None]) -> None:
    """End between the ranks' agreement and the leader's message, or between the answer and when the others hear of it."""
    bell: Any = worker._exchange.doorbell  # type: ignore[union-attr]
    if at == "agreed":
        agreed = bell._agreed
        bell._agreed = lambda message: (agreed(message), end())[0]
    else:
        answered = bell._answered
        bell._answered = lambda *given: (answered(*given), end())[0]
