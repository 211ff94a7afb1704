"""Training functions that are hard to replay: random numbers, pauses, stragglers, deaths."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from support.loops import CLASSES, FEATURES, data


class Augmented(Dataset[tuple[torch.Tensor, int]]):
    """Adds noise of all three random generators to each item read."""

    def __init__(self) -> None:
        self.inputs, self.labels = data(96)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = 0.1 * torch.randn(FEATURES) + random.gauss(0, 0.1) + float(np.random.normal(0, 0.1))
        return self.inputs[index] + noise, int(self.labels[index])


def build(hidden: int = 16) -> nn.Module:
    """A model with dropout and batch-norm statistics."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(FEATURES, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, CLASSES)
    )


def chancy(
    worker: Any,
    epochs: int = 4,
    kind: str = "sgd",
    poison: tuple[int, int] | None = None,
    dies: Path | None = None,
    ends: Path | None = None,
    stops: tuple[int, int] | None = None,
    hidden: int = 16,
) -> None:
    """Dropout, augmentation, a learning-rate schedule, gradients over two batches now and then, and random pauses.

    `poison`: that worker's step with a NaN. `dies`: worker 1 kills itself in its fifth step, unless that file is there. `ends`:
    worker 0 kills the server in its tenth step or later, once there is a checkpoint in that folder; the first time only.
    `stops`: that worker asks for the end of the run in that step, or in the next one if that was called off before.
    """
    model = build(hidden)
    if kind == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    elif kind == "nadam":
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.01, weight_decay=0.01)
    elif kind == "adafactor":  # keeps tensors that are not of a parameter's shape
        optimizer = torch.optim.Adafactor(model.parameters())
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if kind == "plain" else 0.9)
    loader = DataLoader(Augmented(), batch_size=6, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.8)
    optimizer.step_was_called = True  # a resumed schedule catches up before the first step
    for _ in range(worker.steps_before):
        schedule.step()
    pauses = random.Random(os.getpid())  # of this process alone, as in life
    step = 0
    for _ in range(epochs):
        for inputs, labels in loader:
            step += 1
            with worker.step():
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), labels)
                loss.backward()
                if poison == (worker.rank, step):
                    next(iter(model.parameters())).grad.mul_(float("nan"))
                if stops is not None and worker.rank == stops[0] and step >= stops[1]:
                    worker.stop("enough")
                time.sleep(pauses.expovariate(1 / 0.004))
                optimizer.step()
                worker.log(loss=loss)
            schedule.step()
            begun = ends is not None and worker.rank == 0 and step >= 10 and not (ends / "ended").exists()
            if ends is not None and begun and any(ends.rglob("version-*/manifest.json")):
                (ends / "ended").touch()
                os.kill(worker.server_pid, signal.SIGKILL)
            if dies is not None and worker.rank == 1 and step == 5 and not dies.exists():
                dies.touch()
                os.kill(os.getpid(), signal.SIGKILL)


def fills_the_disk(worker: Any) -> None:
    """As `chancy`; from worker 0's fifth step on, the server cannot write to files."""
    import resource

    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Augmented(), batch_size=2))
    for step, (inputs, labels) in enumerate(loader):
        if worker.rank == 0 and step == 5 and worker.server_pid:  # in a replay it is 0: this very process
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.prlimit(worker.server_pid, resource.RLIMIT_FSIZE, (1, hard))
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        time.sleep(0.02)
        optimizer.step()
