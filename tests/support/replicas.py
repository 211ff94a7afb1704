"""Training functions that look into what all-reduce does."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from plesio.tensors.arena import Arena
from support import loops


def bits(model: nn.Module) -> str:
    """A hash of a model's parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
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
    """Train over leased data and write down the bits of every version; `by_epoch` lowers the rate after each epoch."""
    inputs, labels = loops.data(rows)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True)
    model = build()
    model, optimizer, loader = worker.prepare(model, optimizers(model), loader)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    seen: dict[int, str] = {}
    for _ in range(epochs):
        for some, wanted in loader:
            optimizer.zero_grad()
            loops.loss_of(model, some, wanted).backward()
            optimizer.step()
            seen[worker.version] = bits(model)
        if by_epoch:
            scheduler.step()
    Path(folder, f"{worker.rank}.json").write_text(json.dumps(seen))


def adam_mlp(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def wide() -> nn.Module:
    """Enough parameters for several buckets: the first takes 1 MB."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(loops.FEATURES, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 3))


def disturbed(worker: Any, folder: str, how: str = "", who: int = 1, at: int = 4, steps: int = 10) -> None:
    """Two backward passes a step in a model of several buckets; worker `who` is in trouble at step `at`."""
    inputs, labels = loops.data()
    model = wide()
    model, optimizer, _ = worker.prepare(model, adam_mlp(model), None)
    hurt = worker.rank == who and how
    if hurt and how == "dies amid buckets":
        _die_at(2 * 2 * at + 1)
    if how == "dies amid buckets, unnoticed" and worker.rank == 1:
        _die_at(2 * 2 * at + 1)
    if how == "dies amid buckets, unnoticed" and worker.rank == 2:
        _notice_nothing()
    while worker.version < steps:
        if hurt and how == "frozen" and worker.version == at:
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()
        for half in range(2):
            rows = loops.rows_of((worker.version * 2 + half) * worker.workers + worker.rank, 8, len(inputs))
            (loops.loss_of(model, inputs[rows], labels[rows]) / 2).backward()
        if hurt and how == "misses the end" and worker.version == at:
            hurt = False
            worker._exchange._group.fail(RuntimeError("nothing came"))
        optimizer.step()
    Path(folder, f"{worker.rank}.txt").write_text(bits(model))
    worker.log(discarded=worker.discarded)


def _notice_nothing() -> None:
    """Gloo reports no failure to this worker: its operation never ends."""
    from plesio.transport.collective import Group

    wait = Group._wait
    Group._wait = lambda group, work: wait(group, _Unnoticed(work))  # type: ignore[method-assign]


class _Unnoticed:
    """A gloo operation that does not notice a neighbour's closed connection."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout: timedelta) -> None:
        try:
            self._work.wait(timeout)
        except RuntimeError:
            if self._work.is_completed():
                time.sleep(timeout.total_seconds())
            raise

    def is_completed(self) -> bool:
        return False


def _die_at(call: int) -> None:
    """Die when the `call`-th bucket is full and the one before is being reduced."""
    from plesio.transport.collective import Group

    mean, calls = Group.mean, iter(range(call))

    def last(self: Group, tensor: torch.Tensor) -> Any:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return mean(self, tensor)

    Group.mean = last  # type: ignore[method-assign]


def one_norm_step(worker: Any, folder: str) -> None:
    """One step of a model with batch norm; what this worker's own statistics would have been, and what they are."""
    inputs, labels = loops.data()
    model, alone = loops.batch_norm(), loops.batch_norm()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    rows = loops.rows_of(worker.rank, 8, len(inputs))
    alone(inputs[rows])
    cross_entropy(model(inputs[rows]), labels[rows]).backward()
    optimizer.step()
    seen = alone[1].running_mean, model[1].running_mean, model[1].num_batches_tracked
    torch.save([tensor.clone() for tensor in seen], f"{folder}/{worker.rank}")


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
    Path(folder, f"{worker.rank}.txt").write_text(f"{worker.discarded} {bits(model)}")


def misused(worker: Any, how: str) -> None:
    """Misuse of all-reduce."""
    inputs, labels = loops.data()
    plain = loops.mlp()
    model, optimizer, _ = worker.prepare(plain, loops.sgd(plain), None)
    for _ in range(3):
        if how != "no backward":
            cross_entropy((plain if how == "plain model" else model)(inputs), labels).backward()
        if how == "unequal" and worker.rank == 1:
            cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def dies_handing_over(worker: Any, early: int = 5, late: int = 12) -> None:
    """Each step takes 1 from all that is learned. Worker 1 returns early; worker 0 goes on alone, and is killed in the middle
    of handing over what it has."""
    model = loops.mlp()
    torch.nn.utils.vector_to_parameters(torch.zeros(sum(one.numel() for one in model.parameters())), model.parameters())
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), None)
    while worker.version < (late if worker.rank == 0 else early):
        optimizer.zero_grad()
        unused = 0 * model(torch.ones(1, loops.FEATURES)).sum()
        (unused + torch.nn.utils.parameters_to_vector(model.parameters()).sum()).backward()
        optimizer.step()
    if worker.rank == 0:
        Arena.copy_from = _torn  # type: ignore[method-assign]


def _torn(mine: Arena, other: Arena, *_: Any) -> None:
    mine.views[0].copy_(other.views[0])
    os.kill(os.getpid(), signal.SIGKILL)


def without_a_loader(worker: Any, folder: str, slow_s: float = 0.0) -> None:
    """Runs until stopped; worker 1's third step takes `slow_s`."""
    inputs, labels = loops.data()
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    while not worker.stopped:
        if worker.rank == 1 and worker.version == 3:
            time.sleep(slow_s)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        Path(folder, f"{worker.rank}.txt").write_text(f"{worker.version}")
