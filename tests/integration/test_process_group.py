"""Workers in lock step are the default process group of `torch.distributed`: collectives and SyncBatchNorm."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import plesio as ps
from support import loops

State = dict[str, torch.Tensor]


def parts(rows: int = 64) -> tuple[nn.Module, torch.optim.Optimizer, torch.utils.data.TensorDataset]:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, 3),
    )
    model = nn.SyncBatchNorm.convert_sync_batchnorm(plain)
    inputs = torch.randn(rows, 2, 5, 5) * torch.arange(1, rows + 1).reshape(-1, 1, 1, 1) / 9
    data = torch.utils.data.TensorDataset(inputs, torch.randint(3, (rows,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def train(worker: ps.Worker | None, batch: int = 8, dies: bool = False) -> State:
    model, optimizer, data = parts()
    loader: Any = torch.utils.data.DataLoader(data, batch)
    if worker is not None:
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for number, (inputs, labels) in enumerate(loader):
        if dies and worker is not None and worker.rank == 1 and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loops.descend(optimizer, nn.functional.cross_entropy(model(inputs), labels))
    return {name: one.clone() for name, one in model.state_dict().items()}


def collects(worker: ps.Worker) -> list[object]:
    """Two epochs over parts of which one is a batch shorter, with a sum after each; then other collectives."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = worker.prepare(model, optimizer, torch.utils.data.DataLoader(data, 4))
    sums, weights = [], []
    for _ in range(2):
        seen = torch.zeros(1)
        for (rows,) in loader:
            seen += len(rows)
            loops.descend(optimizer, model(rows).square().mean())
        dist.all_reduce(seen)
        sums.append(seen.item())
        weights.append(model.weight.tolist())
    rows = [torch.zeros(1) for _ in range(worker.workers)]
    dist.all_gather(rows, torch.tensor([float(worker.rank)]))
    objects: list[object] = [None] * worker.workers
    dist.all_gather_object(objects, {"rank": worker.rank})
    told = torch.tensor([float(worker.rank)])
    dist.broadcast(told, 2)
    pair = dist.new_group([0, 1])
    own = torch.tensor([worker.rank + 1.0])
    if worker.rank < 2:
        dist.all_reduce(own, op=dist.ReduceOp.MAX, group=pair)
    dist.barrier()
    known = dist.is_initialized(), dist.get_world_size(), dist.get_rank() == worker.rank, dist.get_backend()
    return [sums, weights, [one.item() for one in rows], objects, told.item(), own.item(), known]


def leaves_early(worker: ps.Worker) -> None:
    train(worker)
    if worker.rank:
        dist.barrier()


@pytest.mark.parametrize("strategy", ["sync_sgd", "allreduce"])
def test_sync_batch_norm_is_one_worker_with_the_whole_batch_also_where_parts_are_uneven(strategy: str) -> None:
    got, want = ps.run(train, strategy, workers=3).state_dict, train(None, batch=24)
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=2e-6, msg=name)


@pytest.mark.thorough
def test_collectives_give_what_torch_gives_though_epochs_divide_unevenly() -> None:
    seen = ps.run(collects, "sync_sgd", workers=3).returned
    known = (True, 3, True, "gloo")
    assert [one[0] for one in seen] == [[32, 32]] * 3
    assert seen[0][1] == seen[1][1] == seen[2][1]
    assert [one[2:5] for one in seen] == [[[0, 1, 2], [{"rank": k} for k in range(3)], 2]] * 3
    assert [one[5] for one in seen] == [2, 2, 3]
    assert [one[6] for one in seen] == [known] * 3


def test_a_death_and_an_end_are_named_to_who_waits_in_a_collective() -> None:
    with pytest.raises(
        ps.WorkerLostError, match=r"allreduce on worker [02]: worker 1 died, and a collective is of all workers"
    ):
        ps.run(partial(train, dies=True), "sync_sgd", workers=3)
    with pytest.raises(ps.ConfigurationError, match="barrier on worker 1: worker 0 has come to the end"):
        ps.run(leaves_early, "sync_sgd", workers=2)


def test_elsewhere_they_are_refused_by_name() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"has SyncBatchNorm \(1, 5\).*sync_sgd, allreduce, local_sgd"):
        ps.run(train, "async_sgd", workers=2, engine=ps.Simulated("uniform"))
    with pytest.raises(ps.WorkerError, match=r"has not been initialized.*sync_sgd, allreduce, local_sgd"):
        ps.run(lambda worker: dist.barrier(), "async_sgd", workers=2, engine=ps.Simulated("uniform"))
    one = ps.run(train, "async_sgd", workers=1, engine=ps.Simulated("uniform"))
    assert one.version == 8
