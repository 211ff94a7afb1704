"""Tables of which a step uses few rows: the rows travel, and the results are torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

import plesio as ps
from support.long_forms import in_turn

Make = Callable[[Any, Any], list[Optimizer]]
KINDS: dict[str, Make] = {
    "SGD": lambda table, tower: [SGD([*table, *tower], lr=0.1)],
    "Adagrad": lambda table, tower: [Adagrad([*table, *tower], lr=0.1)],
    "SparseAdam and Adam": lambda table, tower: [SparseAdam(table, lr=0.05), Adam(tower, lr=0.01)],
    "SGD and momentum": lambda table, tower: [SGD(table, lr=0.1), SGD(tower, lr=0.1, momentum=0.9)],
}
UNIFORM = ps.Simulated("uniform")
SERVED: dict[str, Any] = {
    "sync_sgd": "sync_sgd",
    "async_sgd": "async_sgd",
    "buffered": ps.buffered(1),
    "bounded_staleness": "bounded_staleness",
    "gap aware": ps.async_sgd("gap_aware"),
}


class Recommender(nn.Module):
    """Two tables, of which one is large enough to be read in place, and a dense tower."""

    def __init__(self, users: int = 20_000, items: int = 300) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.users = nn.EmbeddingBag(users, 16, mode="sum", sparse=True)
        self.items = nn.Embedding(items, 16, sparse=True)
        self.tower = nn.Linear(16, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.tower(self.users(users) * self.items(items))
        return result

    def made(self, make: Make) -> list[Optimizer]:
        return make([self.users.weight, self.items.weight], list(self.tower.parameters()))


def loop(model: Any, optimizers: list[Any], steps: int, every: int = 1, rank: int = 0) -> None:
    source = torch.Generator().manual_seed(4)
    for _ in range(steps):
        users = torch.randint(0, 20_000, (8, 3), generator=source)
        users[:, 1] = users[0, 0]  # one row several times
        items = torch.randint(0, 300, (8,), generator=source)
        users, items = users[rank::every], items[rank::every]
        for one in optimizers:
            one.zero_grad()
        (model(users, items) - 1.0).square().mean().backward()
        for one in optimizers:
            one.step()


def alone(make: Make, steps: int) -> dict[str, torch.Tensor]:
    model = Recommender()
    loop(model, model.made(make), steps)
    return model.state_dict()


def train(worker: ps.Worker, make: Make, steps: int) -> None:
    model = Recommender()
    model, *optimizers = worker.prepare(model, *model.made(make))
    loop(model, optimizers, steps, worker.workers, worker.rank)


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("name", "kind"), in_turn([*SERVED], [*KINDS], pytest.mark.thorough))
def test_one_worker_gives_torchs_bits(name: str, kind: str) -> None:
    if (name, kind) == ("gap aware", "SparseAdam and Adam"):
        pytest.skip("a correction reads whole tables, and SparseAdam refuses dense gradients")
    strategy, make = SERVED[name], KINDS[kind]
    run = ps.run(partial(train, make=make, steps=12), strategy, workers=1, timeout_s=30.0)
    wanted = alone(make, 12)
    for key, value in run.state_dict.items():
        if name == "gap aware":
            assert torch.allclose(value, wanted[key], atol=1e-6), key
        else:
            assert torch.equal(value, wanted[key]), key


@pytest.mark.parametrize("make", [KINDS["SGD"], KINDS["SGD and momentum"]], ids=["SGD", "SGD and momentum"])
def test_two_workers_in_lock_step_make_the_step_of_both_batches(make: Make) -> None:
    run = ps.run(partial(train, make=make, steps=12), "sync_sgd", workers=2, timeout_s=30.0)
    for name, value in alone(make, 12).items():
        assert torch.allclose(run.state_dict[name], value, atol=1e-5), name


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kind", "strategy"),
    in_turn([*KINDS], [ps.buffered(2), ps.sync_sgd(), ps.async_sgd()], pytest.mark.thorough),
    ids=str,
)
def test_a_run_of_two_replays_and_each_row_is_in_its_versions(strategy: Any, kind: str, tmp_path: Path) -> None:
    part = partial(train, make=KINDS[kind], steps=25)
    run = ps.run(part, strategy, workers=2, timeout_s=30.0, runs=tmp_path)
    assert run.folder is not None
    assert ps.replay(run.folder, part).identical


def one_table(worker: ps.Worker, sparse: bool) -> None:
    torch.manual_seed(3)
    model = nn.Embedding(9, 2, sparse=sparse)
    model, optimizer = worker.prepare(model, SGD(model.parameters(), lr=0.1))
    for step in range(4):
        optimizer.zero_grad()
        (model(torch.tensor([worker.rank, 7, 2 + step])) - 1.0).square().sum().backward()
        optimizer.step()


def test_gradients_that_are_held_for_a_fold_step_by_their_mean_as_dense_ones_do() -> None:
    runs = [ps.run(partial(one_table, sparse=one), ps.buffered(2), workers=2, engine=UNIFORM) for one in (True, False)]
    assert runs[0].version == runs[1].version == 4
    torch.testing.assert_close(*(run.state_dict["weight"] for run in runs))


def test_local_steps_and_hogwild_take_tables_as_they_are() -> None:
    for strategy in (ps.local_sgd(1), "hogwild"):
        run = ps.run(partial(train, make=KINDS["SparseAdam and Adam"], steps=12), strategy, workers=1, timeout_s=30.0)
        wanted = alone(KINDS["SparseAdam and Adam"], 12)
        assert all(torch.equal(value, wanted[name]) for name, value in run.state_dict.items())


def test_bytes_are_those_of_the_rows() -> None:
    run = ps.run(partial(train, make=KINDS["SGD"], steps=12), "sync_sgd", workers=1, timeout_s=30.0)
    rows = 8 * 3 + 8
    up, down, tower = rows * (16 * 4 + 8), rows * 16 * 4, 17 * 4
    assert run.summary.bytes == 12 * (up + down + 2 * tower)


@pytest.mark.thorough
def test_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    make = KINDS["SparseAdam and Adam"]
    part, keeping = partial(half, make=make), ps.Checkpoint()
    first = ps.run(part, "sync_sgd", workers=1, timeout_s=30.0, runs=tmp_path, checkpoint=keeping)
    assert first.folder is not None
    rest = ps.run(part, "sync_sgd", workers=1, timeout_s=30.0, resume=first.folder)
    model = Recommender()
    optimizers = model.made(make)
    loop(model, optimizers, 6)
    loop(model, optimizers, 6)
    assert all(torch.equal(rest.state_dict[name], value) for name, value in model.state_dict().items())


def half(worker: ps.Worker, make: Make) -> None:
    model = Recommender()
    model, *optimizers = worker.prepare(model, *model.made(make))
    loop(model, optimizers, 6)


class Seen(nn.Module):
    """A small table that a batch reads more rows of than it has; and one that a dense loss reaches, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.small = nn.Embedding(4, 3, sparse=True)
        self.tied = nn.Embedding(6, 3, sparse=True)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        hidden = self.small(index % 4) + self.tied(index % 6)
        return (hidden @ self.tied.weight.T).square().mean()


def seen(worker: ps.Worker | None) -> dict[str, torch.Tensor]:
    model: Any = Seen()
    optimizer: Any = SGD(model.parameters(), lr=0.1)
    if worker is not None:
        model, optimizer = worker.prepare(model, optimizer)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.arange(20) * (step + 1)).backward()
        optimizer.step()
    return dict(model.state_dict())


def test_dense_gradients_and_more_rows_than_a_table_has_are_right() -> None:
    run = ps.run(lambda worker: seen(worker) and None, "async_sgd", workers=1, timeout_s=30.0)
    for name, value in seen(None).items():
        assert torch.allclose(run.state_dict[name], value, atol=1e-6), name


def judged(model: nn.Module) -> dict[str, float]:
    return {"sum": sum(float(one.double().sum()) for one in model.parameters())}


@pytest.mark.parametrize("make", [KINDS["SGD"], KINDS["SparseAdam and Adam"]], ids=["SGD", "looks ahead"])
@pytest.mark.thorough
def test_evaluation_sees_the_rows_of_its_version(make: Make) -> None:
    part = partial(train, make=make, steps=200)
    run = ps.run(part, "async_sgd", workers=2, timeout_s=30.0, evaluate=judged, evaluate_every_s=0.02)
    wanted = sum(float(one.double().sum()) for one in run.state_dict.values())
    assert run.history[-1].metrics["sum"] == pytest.approx(wanted, rel=1e-9)


def test_not_finite_rows_are_discarded() -> None:
    with pytest.warns(RuntimeWarning, match="NaN"):
        run = ps.run(broken, "sync_sgd", workers=1, timeout_s=30.0, engine=ps.Simulated("uniform"))
    assert run.discarded == {"not finite": 1}
    assert all(bool(one.isfinite().all()) for one in run.state_dict.values())


def broken(worker: ps.Worker) -> None:
    model: Any = Recommender()
    model, optimizer = worker.prepare(model, SGD(model.parameters(), lr=0.1))
    for scale in (1.0, float("nan"), 1.0):
        optimizer.zero_grad()
        (model(torch.arange(6).view(2, 3), torch.arange(2)) * scale).sum().backward()
        optimizer.step()
