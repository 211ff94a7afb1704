"""Training functions for runs that are stopped while something takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from plesio.server.checkpoints import CheckpointStore
from support import loops


class SlowDisk:
    """Wraps a training function. Where it arrives, so in the fork server and all that it forks, a checkpoint below `folder` takes
    `seconds` to write, and `folder` tells when one was begun."""

    def __init__(self, train: Callable[..., object], folder: Path, seconds: float) -> None:
        self.train, self.folder, self.seconds = train, folder, seconds

    def __call__(self, worker: Any) -> None:
        try:
            self.train(worker)
        finally:
            (self.folder / f"finally {worker.rank}").touch()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        save = CheckpointStore.save

        def slow(store: CheckpointStore, *what: Any) -> Path:
            if self.folder in store._folder.parents:
                (self.folder / "writing").touch()
                time.sleep(self.seconds)
            return save(store, *what)

        CheckpointStore.save = slow


class SlowToLoad:
    """A training function that takes half a minute to unpickle, and notes the start of that in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker: Any) -> None:
        """Nothing."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        (state["folder"] / "loading").touch()
        time.sleep(30.0)


def lingering(worker: Any, pause_s: float) -> None:
    """Worker 1 pauses between a step and its next batch, and hears of the stop only there."""
    torch.manual_seed(3)
    inputs, labels = loops.data(96)
    model = loops.mlp()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    for inputs, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if worker.rank == 1:
            time.sleep(pause_s)


class Unlucky(Exception):
    """An error during whose formatting a DataLoader's process is killed."""

    def __str__(self) -> str:
        for child in active_children():
            child.kill()
        time.sleep(0.5)
        return "the user's error"


def unlucky(worker: Any) -> None:
    """Worker 1 raises; a DataLoader's process dies while the error is reported."""
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data()
    batches: Iterator[Any] = iter(DataLoader(TensorDataset(inputs), num_workers=2, persistent_workers=True))
    for step in range(1000):
        optimizer.zero_grad()
        loops.loss_of(model, inputs, labels).backward()
        optimizer.step()
        time.sleep(0.005)
        if worker.rank == 1 and step == 3:
            next(batches)
            raise Unlucky


def late_for_data(worker: Any) -> None:
    """One batch per epoch and worker; worker 0 asks for its next one after the others have finished theirs."""
    inputs, labels = loops.data(3)
    model = loops.mlp()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=1)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    for _ in range(1000):
        if worker.rank == 0:
            time.sleep(0.2)
        for rows, wanted in loader:
            optimizer.zero_grad()
            cross_entropy(model(rows), wanted).backward()
            optimizer.step()


def only_reads(worker: Any) -> None:
    """One step, then only iterates over the data."""
    inputs, labels = loops.data(24)
    model = loops.mlp()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=1)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    try:
        for _ in range(1000):
            for _ in loader:
                time.sleep(0.01)
    finally:
        worker.log(left_by_itself=1.0)
