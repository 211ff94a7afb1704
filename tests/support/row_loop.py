"""A training function with tables that is hard to resume: a loader, noise, two tables of which one is used twice, a kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

WAITING = ("candidates", "counts", "counted")
IDS, WORDS, SAMPLES, BATCH = 30, 24, 96, 4


class Net(nn.Module):
    """Ids of two kinds: a user and, of the same table, who they follow; and a bag of words."""

    def __init__(
        self, dim: int = 4, inner: str = "words", tables: bool = True, lr: float = 0.1, mortal: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inner = inner
        if tables:
            life: dict[str, Any] = {"admit": ps.Seen(3), "expire": ps.Unused(4)} if mortal else {}
            self.ids: nn.Module = ps.Table(dim, ps.RowAdagrad(lr), scale=0.3, **life)
            life = {"expire": ps.Unused(1)} if mortal else {}
            self.deep = nn.ModuleDict({inner: ps.TableBag(2, ps.RowAdam(0.02), mode="mean", scale=0.3, **life)})
        else:
            self.ids = nn.Embedding(IDS, dim)
            self.deep = nn.ModuleDict({inner: nn.EmbeddingBag(WORDS, 2, mode="mean")})
        self.top = nn.Sequential(nn.Linear(2 * dim + 2, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        user, other, words = batch[:, 0], batch[:, 1], batch[:, 2:]
        parts = [self.ids(user), self.ids(other), self.deep[self.inner](words)]
        out: torch.Tensor = self.top(torch.cat(parts, 1))[:, 0]
        return out


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    ids = torch.randint(IDS, (SAMPLES, 2), generator=made)
    words = torch.randint(WORDS, (SAMPLES, 3), generator=made)
    return torch.cat([ids, words], 1), ((ids.sum(1) + words[:, 0]) % 2).float()


def dealt(
    worker: Any,
    epochs: int = 3,
    ends: Path | None = None,
    dim: int = 4,
    inner: str = "words",
    tables: bool = True,
    pause_s: float = 0.003,
    lr: float = 0.1,
    mortal: bool = False,
    waits: Path | None = None,
) -> None:
    """`ends`: worker 0 kills the server in its tenth step or later, once there is a checkpoint in that folder; only once.
    `waits`: workers wait after their first step until there is that file."""
    net = Net(dim, inner, tables, lr, mortal)
    loader = DataLoader(TensorDataset(*samples()), BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loader)
    step = 0
    for _ in range(epochs):
        for batch, labels in loader:
            step += 1
            with worker.step():
                optimizer.zero_grad()
                binary_cross_entropy_with_logits(model(batch), labels).backward()
                if pause_s:
                    time.sleep(pause_s)
                optimizer.step()
            while waits is not None and not waits.exists():
                time.sleep(0.01)
            begun = ends is not None and worker.rank == 0 and step >= 10 and not (ends / "ended").exists()
            if ends is not None and begun and any(ends.rglob("version-*/manifest.json")):
                (ends / "ended").touch()
                os.kill(worker.server_pid, signal.SIGKILL)


def rows_of(run: ps.Run) -> dict[str, dict[str, torch.Tensor]]:
    """All rows of all tables, by key; and the keys that wait for one."""
    found = {}
    for name, table in run.tables.items():
        rows = table.get_extra_state()
        order = rows["keys"].argsort()
        waiting = rows["candidates"].argsort() if "candidates" in rows else order
        found[name] = {
            part: array[waiting if part in WAITING else order] for part, array in rows.items() if part != "seed"
        }
    return found


def same_rows(one: ps.Run, other: ps.Run) -> bool:
    """The same keys, values and state, bit for bit."""
    mine, theirs = rows_of(one), rows_of(other)
    return mine.keys() == theirs.keys() and all(
        torch.equal(array, theirs[name][part]) for name, rows in mine.items() for part, array in rows.items()
    )
