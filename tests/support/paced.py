"""Training functions that write down which versions they see, at a pace that can be changed from outside.

`seen`: the folder where they do; once there is a file `hurry` in it, they pause no more.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.loops import CLASSES, FEATURES, data
from support.row_each import row_each

BATCH = 4


def visiting(worker: Any, seen: Path, samples: int, epochs: int, lr: float, pause_s: float) -> None:
    """Each sample has a row of its own in the model, from which each fold of it takes 1, where `lr` is the number of workers."""
    model, optimizer, loader = row_each(worker, samples, BATCH, lr=lr)
    for _ in range(epochs):
        for (rows,) in loader:
            optimizer.zero_grad()
            model(rows).sum().backward()
            _pause(seen, pause_s)
            optimizer.step()
            _look(worker, model, seen)


class Each(nn.Module):
    """Each sample has a row of a table, which moves by 1 when it steps."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = ps.Table(2, ps.RowSGD(1.0), scale=0.0)
        self.top = nn.Linear(1, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.ids(ids)
        return rows.sum() + self.top(torch.ones(1, 1)).sum()


def visiting_rows(worker: Any, seen: Path, samples: int, epochs: int, pause_s: float) -> None:
    net: Any = Each()
    loader: Any = DataLoader(TensorDataset(torch.arange(samples)), batch_size=BATCH, shuffle=True)
    net, optimizer, loader = worker.prepare(net, torch.optim.SGD(net.top.parameters(), lr=0.05), loader)
    for _ in range(epochs):
        for (ids,) in loader:
            optimizer.zero_grad()
            net(ids).backward()
            _pause(seen, pause_s)
            optimizer.step()
            _look(worker, net, seen)


def carrying(worker: Any, seen: Path, samples: int, epochs: int, pause_s: float) -> None:
    """Dropout, momentum and a schedule: what is hard to replay."""
    torch.manual_seed(3)
    model: Any = nn.Linear(FEATURES, CLASSES)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    loader: Any = DataLoader(TensorDataset(*data(samples)), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, schedule = worker.prepare(model, optimizer, loader, schedule)
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(dropout(inputs, 0.1)), labels).backward()
            _pause(seen, pause_s)
            optimizer.step()
            schedule.step()
            _look(worker, model, seen)


def _pause(seen: Path, pause_s: float) -> None:
    if not (seen / "hurry").exists():
        time.sleep(pause_s)


def _look(worker: Any, model: nn.Module, seen: Path) -> None:
    """Write down which version this is, and a digest of its weights."""
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()[:16]
    with open(seen / f"{os.getpid()}", "a") as file:
        file.write(f"{worker.version} {digest}\n")


def made_twice(seen: Path) -> list[int]:
    """The versions of which workers saw two."""
    made: dict[int, set[str]] = defaultdict(set)
    for file in seen.glob("[0-9]*"):
        for line in file.read_text().splitlines():
            version, digest = line.split()
            made[int(version)].add(digest)
    return [version for version, digests in made.items() if len(digests) > 1]
