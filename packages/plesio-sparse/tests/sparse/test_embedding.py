"""A table trained lock-free by worker processes: shared memory, correct steps, no leaks."""

from __future__ import annotations

import gc
import os
import pickle
import runpy
import signal
import subprocess
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import plesio as ps
from plesio.errors import ConfigurationError, SharedMemoryError
from plesio.sparse.embedding import SharedEmbedding
from support.long_forms import but_slow

EXAMPLE = Path(__file__).parents[4] / "examples" / "recommender.py"


def test_sgd_matches_torch() -> None:
    table = SharedEmbedding(20, 4, lr=0.1, optimizer="sgd")
    ordinary = nn.Embedding.from_pretrained(table.table.clone(), freeze=False)
    stepping = torch.optim.SGD(ordinary.parameters(), lr=0.1)
    weights = torch.randn(3, 2, 4)
    for _ in range(5):
        indices = torch.randint(20, (3, 2))
        (table(indices) * weights).sum().backward()
        stepping.zero_grad()
        (ordinary(indices) * weights).sum().backward()
        stepping.step()
    assert torch.allclose(table.table, ordinary.weight, atol=1e-6)


def test_adagrad_sums_a_batchs_gradients_by_row() -> None:
    table = SharedEmbedding(5, 2, lr=0.5)
    before = table.table.clone()
    gradient = torch.tensor([[3.0, 0.0], [1.0, 4.0], [3.0, 0.0]])
    (table(torch.tensor([1, 4, 1])) * gradient).sum().backward()
    (table(torch.tensor([4])) * torch.tensor([[1.0, 1.0]])).sum().backward()
    squares = torch.tensor([0.0, 18.0, 0.0, 0.0, 8.5 + 1.0])
    assert torch.allclose(table.squares, squares)
    before[1] -= 0.5 * torch.tensor([6.0, 0.0]) / 18.0**0.5
    before[4] -= 0.5 * (torch.tensor([1.0, 4.0]) / 8.5**0.5 + torch.tensor([1.0, 1.0]) / 9.5**0.5)
    assert torch.allclose(table.table, before)


def test_eval_and_no_grad_leave_the_table_unchanged() -> None:
    table = SharedEmbedding(5, 2)
    assert list(table.parameters()) == list(table.buffers()) == []
    before = table.table.clone()
    table.eval()
    assert not table(torch.tensor([1])).requires_grad
    with torch.no_grad():
        table.train()(torch.tensor([1]))
    assert torch.equal(table.table, before)


def test_non_finite_gradients_are_skipped() -> None:
    table = SharedEmbedding(5, 2)
    before = table.table.clone()
    (table(torch.tensor([1])) * float("nan")).sum().backward()
    assert torch.equal(table.table, before)


def test_reset_restores_the_initial_table() -> None:
    table, twin = SharedEmbedding(50, 4, seed=3), SharedEmbedding(50, 4, seed=3)
    assert torch.equal(table.table, twin.table)
    table(torch.arange(50)).sum().backward()
    assert not torch.equal(table.table, twin.table)
    table.reset()
    assert torch.equal(table.table, twin.table)
    assert not table.squares.any()


def test_a_pickled_copy_shares_the_memory() -> None:
    table = SharedEmbedding(5, 2)
    copy = pickle.loads(cloudpickle.dumps(nn.Sequential(table)))[0]
    copy.table[2, 1] = 42.0
    assert table.table[2, 1] == 42.0
    assert (copy.lr, copy.optimizer, copy.training) == (table.lr, table.optimizer, True)


def test_unpickling_after_the_owner_died_is_an_error() -> None:
    table = SharedEmbedding(5, 2)
    mine = table.place
    dead = subprocess.Popen(["true"])
    dead.wait()
    table.place = msgspec.structs.replace(mine, maker=dead.pid)
    orphan = pickle.dumps(table)
    with pytest.raises(SharedMemoryError, match=r"5 rows of 2 cannot be reached: .* must run"):
        pickle.loads(orphan)
    table.place = mine
    gone = pickle.dumps(table)
    del table
    gc.collect()
    with pytest.raises(SharedMemoryError, match="cannot be reached"):
        pickle.loads(gone)


def test_tables_leave_no_open_descriptors() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        table = SharedEmbedding(100, 10)
        pickle.loads(pickle.dumps(table))
    del table
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"rows": 0, "width": 2}, "rows=0"),
        ({"rows": 2.5, "width": 2}, "rows=2.5: allowed is a whole number of at least 1"),
        ({"rows": 2, "width": "8"}, "width='8'"),
        ({"rows": 2, "width": 2, "seed": None}, "seed=None"),
        ({"rows": 2, "width": 2, "lr": "0.1"}, "lr='0.1': allowed is a number"),
        ({"rows": 2, "width": 2, "lr": 0.0}, "lr=0.0"),
        ({"rows": 2, "width": 2, "optimizer": "adam"}, "unknown optimizer 'adam'; known: adagrad, sgd"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        SharedEmbedding(**arguments)


# In a run


class Tagger(nn.Module):
    """Each row learns a number, read out by a dense layer that the strategy trains."""

    def __init__(self, table: SharedEmbedding) -> None:
        super().__init__()
        self.table, self.out = table, nn.Linear(table.width, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The number of each row."""
        return self.out(self.table(rows)).squeeze(-1)


def training(table: SharedEmbedding) -> Any:
    def train(worker: ps.Worker) -> None:
        torch.manual_seed(0)
        model = Tagger(table)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
        generator = torch.Generator().manual_seed(worker.rank)
        for _ in range(150):
            rows = torch.randint(table.rows // 2, (32,), generator=generator) * 2 + worker.rank
            with worker.step():
                optimizer.zero_grad()
                (model(rows) - torch.sin(rows)).square().mean().backward()
                optimizer.step()

    return train


def judging(table: SharedEmbedding) -> Any:
    def evaluate(model: nn.Module) -> dict[str, float]:
        rows = torch.arange(table.rows)
        return {"loss": (model(rows) - torch.sin(rows)).square().mean().item()}

    return evaluate


@pytest.mark.parametrize(
    "strategy", but_slow([ps.async_sgd(), ps.sync_sgd(), ps.hogwild()], {"hogwild"}), ids=lambda one: one.name
)
def test_worker_processes_train_one_table_beside_a_dense_part(strategy: ps.Strategy) -> None:
    table = SharedEmbedding(40, 8, lr=0.1)
    run = ps.run(training(table), strategy, workers=2, evaluate=judging(table))
    assert run.history[-1].metrics["loss"] < 0.1  # of rows that one worker alone ever saw as much as of the other's
    assert all(table.squares > 0)  # seen here too, in the process that made it
    assert set(run.state_dict) == {"out.weight", "out.bias", "table._extra_state"}


ROWS = 60


class Counted(nn.Module):
    """Each visit takes exactly 1 from a row."""

    def __init__(self, table: SharedEmbedding) -> None:
        super().__init__()
        self.table, self.dense = table, nn.Parameter(torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Their sum."""
        return self.table(rows).sum() + 0 * self.dense.sum()


def counting(table: SharedEmbedding, kills: Path) -> Any:
    def train(worker: ps.Worker) -> None:
        model = Counted(table)
        data = torch.utils.data.TensorDataset(torch.arange(ROWS))
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        for (rows,) in loader:
            with worker.step():
                optimizer.zero_grad()
                model(rows).backward()
                if worker.rank == 1 and kills.exists():
                    kills.unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()

    return train


@pytest.mark.thorough
def test_a_table_is_in_checkpoint_and_result_and_a_death_steps_no_row_twice(tmp_path: Path) -> None:
    table = SharedEmbedding(ROWS, 1, lr=1.0, optimizer="sgd")
    before = table.table.clone()
    train, kills = counting(table, tmp_path / "kills"), tmp_path / "kills"
    kills.touch()
    kept: Any = {"workers": 2, "runs": tmp_path, "checkpoint": ps.Checkpoint(every_s=60)}
    run = ps.run(train, ps.async_sgd("plain"), until=ps.Until(steps=15), pace=0.01, **kept)
    assert any("died" in incident.what for incident in run.incidents)
    assert set((before - table.table).round().flatten().tolist()) == {0.0, 1.0}
    assert torch.equal(run.state_dict["table._extra_state"][:ROWS], table.table.flatten())
    trained = table.table.clone()
    table.reset()
    Counted(table).load_state_dict(run.state_dict)
    assert torch.equal(table.table, trained)
    table.reset()
    again = ps.run(train, ps.async_sgd("plain"), resume=run.folder, **kept)
    visits = (before - table.table).round()
    assert set(visits.flatten().tolist()) <= {0.0, 1.0}
    assert visits.sum() >= ROWS - 4  # a checkpoint may lack the step that each worker is about to make
    assert again.version == 30


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_slow([ps.ringmaster(1), ps.first_of(1)], {"first_of(1)"}), ids=lambda one: one.name
)
def test_a_step_that_does_not_count_steps_no_row(strategy: ps.Strategy, tmp_path: Path) -> None:
    table = SharedEmbedding(ROWS, 1, lr=1.0, optimizer="sgd")
    before = table.table.clone()
    run = ps.run(
        counting(table, tmp_path / "none"), strategy, workers=2, faults=[ps.Slow(worker=0, factor=4)], pace=0.01
    )
    assert run.summary.folded == 30
    assert torch.equal((before - table.table).round(), torch.ones(ROWS, 1))


def test_a_simulated_run_trains_the_table_and_has_it_in_its_result(tmp_path: Path) -> None:
    table = SharedEmbedding(ROWS, 1, lr=1.0, optimizer="sgd")
    before = table.table.clone()
    run = ps.run(counting(table, tmp_path / "none"), ps.sync_sgd(), workers=2, engine=ps.Simulated("uniform"))
    assert torch.equal((before - table.table).round(), torch.ones(ROWS, 1))
    assert torch.equal(run.state_dict["table._extra_state"][:ROWS], table.table.flatten())
    before = table.table.clone()
    table(torch.tensor([0])).sum().backward()  # steps at once again
    assert (before - table.table)[0].round() == 1


def test_a_worker_cannot_have_a_table_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a SharedEmbedding of its own"):
        ps.run(lambda worker: counting(SharedEmbedding(ROWS, 1), tmp_path)(worker), ps.async_sgd(), workers=1)


@pytest.mark.thorough
def test_the_recommender_example_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    users, films = rng.integers(1, 60, 6000), rng.integers(1, 40, 6000)
    stars = np.clip(3 + users % 3 - films % 3 + rng.integers(0, 2, 6000), 1, 5)
    ratings = tmp_path / "u.data"
    ratings.write_text("".join(f"{u}\t{f}\t{s}\t0\n" for u, f, s in zip(users, films, stars, strict=True)))
    monkeypatch.setenv("PLESIO_MOVIELENS", str(ratings))
    script = runpy.run_path(str(EXAMPLE), run_name="recommender")
    run = ps.run(script["train"], ps.async_sgd(), workers=2, evaluate=script["evaluate"], evaluate_every_s=0.1)
    assert run.history[-1].metrics["rmse"] < 0.8 < stars.std()


def test_the_recommender_example_says_how_to_get_ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLESIO_MOVIELENS", str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match="pip download recbole"):
        runpy.run_path(str(EXAMPLE), run_name="recommender")
