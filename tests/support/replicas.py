"""Training functions that look into what all-reduce does."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from support import loops


def bits(model: nn.Module) -> str:
    """A hash of a model's parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def weights(model: nn.Module) -> str:
    """A hash of a model's parameters."""
    digest = hashlib.sha256()
    for value in model.parameters():
        digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def watched(
    worker: Any,
    folder: str,
    build: loops.Build = loops.mlp,
    optimizers: loops.Optimizers = loops.momentum,
    epochs: int = 3,
    rows: int = 96,
    batch: int = 8,
    by_epoch: bool = False,
) -> None:
    """Train over leased data and write down the weights' bits after every step; `by_epoch` lowers the rate after each epoch."""
    inputs, labels = loops.data(rows)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True)
    model = build()
    model, optimizer, loader = worker.prepare(model, optimizers(model), loader)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    seen: list[str] = []
    for _ in range(epochs):
        for some, wanted in loader:
            optimizer.zero_grad()
            loops.loss_of(model, some, wanted).backward()
            optimizer.step()
            seen.append(weights(model))
        if by_epoch:
            scheduler.step()
    Path(folder, f"{worker.rank}.json").write_text(json.dumps(seen))


class Forked(nn.Module):
    """The caller chooses the branch; one is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.left, self.right, self.never = (nn.Linear(loops.FEATURES, loops.CLASSES) for _ in range(3))

    def forward(self, inputs: torch.Tensor, left: bool) -> torch.Tensor:
        return self.left(inputs) if left else self.right(inputs)


def forked(worker: Any, folder: str, steps: int = 5) -> None:
    """Worker 0 uses the left branch, the others the right."""
    inputs, labels = loops.data()
    model = Forked()
    model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs, worker.rank == 0), labels).backward()
        assert model.never.weight.grad is None
        optimizer.step()
    Path(folder, f"{worker.rank}.txt").write_text(bits(model))


def poisoned_data(worker: Any, folder: str, at: int, steps: int = 8) -> None:
    """Worker 1 has a NaN in its data at step `at`."""
    inputs, labels = loops.data()
    model = loops.batch_norm()
    model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
    for step in range(steps):
        some = inputs[:8].clone()
        if worker.rank == 1 and step == at:
            some[0, 0] = float("nan")
        optimizer.zero_grad()
        cross_entropy(model(some), labels[:8]).backward()
        optimizer.step()
    Path(folder, f"{worker.rank}.txt").write_text(f"{worker.discarded} {weights(model)}")


def misused(worker: Any, folder: str, how: str) -> None:
    """Other uses of all-reduce."""
    inputs, labels = loops.data()
    plain = loops.mlp()
    model, optimizer, _ = worker.prepare(plain, loops.sgd(plain), None)
    for _ in range(3):
        optimizer.zero_grad()
        if how != "no backward":
            cross_entropy((plain if how == "plain model" else model)(inputs), labels).backward()
        if how == "unequal" and worker.rank == 1:
            cross_entropy(model(inputs), labels).backward()
        if how == "another rate":
            optimizer.param_groups[0]["lr"] = 0.1 * worker.rank
        optimizer.step()
    Path(folder, f"{worker.rank}.txt").write_text(weights(model))


def without_a_loader(worker: Any, folder: str, slow_s: float = 0.0) -> None:
    """Runs until stopped; worker 1's third step takes `slow_s`."""
    inputs, labels = loops.data()
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    steps = 0
    while not worker.stopped:
        if worker.rank == 1 and steps == 3:
            time.sleep(slow_s)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        steps += 1
        Path(folder, f"{worker.rank}.txt").write_text(f"{steps}")
