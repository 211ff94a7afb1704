"""One worker is the script: order and random draws are torch's, in real and simulated runs, resumed and replayed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, WeightedRandomSampler

import plesio as ps
from plesio.core.leases import DataLeases
from plesio.worker.data.order import BatchOrder
from support import loops
from support.long_forms import but_thorough

ROWS = 23
SIMULATED = ps.Simulated("uniform")
Weights = dict[str, torch.Tensor]


class Augmented(Dataset[torch.Tensor]):
    """Draws from each of the global sources."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((3,), row / ROWS) + torch.rand(3) + np.random.rand() + random.random()


class BySource(Sampler[int]):
    """Has a source of its own, or draws from NumPy's as it goes."""

    def __init__(self, own: bool) -> None:
        self.source = np.random.default_rng(5) if own else None

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        if self.source is not None:
            yield from self.source.permutation(ROWS).tolist()
        else:
            for _ in range(ROWS):
                yield int(np.random.randint(ROWS))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def batches(**settings: Any) -> DataLoader[Any]:
    return DataLoader(Augmented(), batch_size=4, **settings)


def replaced(generator: torch.Generator | None, samples: int = 70) -> RandomSampler:
    return RandomSampler(range(ROWS), replacement=True, num_samples=samples, generator=generator)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: batches(shuffle=True, drop_last=True),
    "generator": lambda: batches(shuffle=True, generator=seeded()),
    "weighted": lambda: batches(sampler=WeightedRandomSampler([1.0] * ROWS, 20)),
    "replaced": lambda: batches(sampler=replaced(None)),
    "replaced by generator": lambda: batches(sampler=replaced(seeded())),
    "as it goes": lambda: batches(sampler=BySource(own=False)),
    "own source": lambda: batches(sampler=BySource(own=True)),
    "unbatched": lambda: DataLoader(Augmented(), batch_size=None, shuffle=True),
    "processes": lambda: batches(shuffle=True, num_workers=1),
    "list": lambda: [torch.ones(3) * row / 9 for row in range(9)],
}


def script(
    worker: ps.Worker | None = None, load: str = "shuffled", shape: str = "plain", stop: int = 0, seeds: bool = True
) -> Weights:
    """A loop with dropout over what it is given."""
    if seeds:
        torch.manual_seed(1), np.random.seed(2), random.seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    loader, other = LOADERS[load](), batches(shuffle=True)
    if worker is not None:
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        other = worker.share(other)
    taken = 0

    def step(batch: torch.Tensor) -> None:
        nonlocal taken
        taken += 1
        loops.descend(optimizer, model(batch).square().mean())

    if shape == "a look":
        next(iter(loader))
    if shape == "by next":
        batches_left = iter(loader)
        for _ in range(9):
            if (batch := next(batches_left, None)) is None:
                batches_left = iter(loader)
                batch = next(batches_left)
            step(batch)
    for _ in range(3 if shape != "by next" else 0):
        for place, batch in enumerate(zip(loader, other, strict=False) if shape == "two loaders" else loader):
            step(sum(batch) if shape == "two loaders" else batch)
            if taken == stop:
                return {}
            if shape == "left early" and place == 1:
                break
        if shape == "a test":
            for batch in other:
                with torch.no_grad():
                    model(batch)
            with torch.no_grad():
                for batch in loader:
                    model(batch)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: Weights, other: Weights) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.few(4)
@pytest.mark.parametrize("load", LOADERS)
def test_one_worker_draws_what_the_script_draws(load: str, tmp_path: Path) -> None:
    train = partial(script, load=load)
    run = ps.run(train, "sync_sgd", workers=1, engine=SIMULATED, runs=tmp_path)
    assert same(script(load=load), run.state_dict)
    assert ps.replay(run.folder, train).identical


@pytest.mark.parametrize("shape", ["a look", "by next", "two loaders", "left early", "a test"])
@pytest.mark.parametrize("load", ["shuffled", "generator"])
def test_loops_of_any_shape_draw_what_the_script_draws(load: str, shape: str) -> None:
    train = partial(script, load=load, shape=shape)
    assert same(train(), ps.run(train, "sync_sgd", workers=1, engine=SIMULATED).state_dict)


@pytest.mark.parametrize("strategy", ["sync_sgd", "allreduce", "async_sgd"])
def test_a_script_that_is_seeded_outside_of_train_is_the_script(strategy: str, tmp_path: Path) -> None:
    train = partial(script, seeds=False)
    torch.manual_seed(7), np.random.seed(8), random.seed(9)
    run = ps.run(train, strategy, workers=1, runs=tmp_path)
    assert ps.replay(run.folder, train).identical
    assert same(train(), run.state_dict)


@pytest.mark.few(3)
@pytest.mark.parametrize("stop", but_thorough([3, 6, 8], {6}))
@pytest.mark.parametrize("load", ["shuffled", "replaced by generator", "as it goes", "own source"])
def test_a_resumed_run_of_one_worker_draws_as_uninterrupted(load: str, stop: int, tmp_path: Path) -> None:
    """In the middle of an epoch, or at its end."""
    kept: dict[str, Any] = {"workers": 1, "engine": SIMULATED, "runs": tmp_path, "checkpoint": ps.Checkpoint()}
    half = ps.run(partial(script, load=load, stop=stop), "sync_sgd", **kept)
    train = partial(script, load=load)
    run = ps.run(train, "sync_sgd", resume=half.folder, **kept)
    assert same(script(load=load), run.state_dict)
    assert ps.replay(run.folder, train, force=True).identical


# Several workers


def numbers(order: BatchOrder, epoch: int) -> list[int]:
    return [row for number in range(order.total) for row in order.batches(epoch)[number]]


@pytest.mark.parametrize("sampled", [False, True], ids=["loader", "sampler"])
def test_a_generator_decides_the_order_of_several_workers(sampled: bool) -> None:
    def load() -> DataLoader[Any]:
        if sampled:
            return DataLoader(range(ROWS), batch_size=4, sampler=replaced(seeded()))  # type: ignore[arg-type]
        return DataLoader(range(ROWS), batch_size=4, shuffle=True, generator=seeded())  # type: ignore[arg-type]

    torchs, order, late = load(), BatchOrder(load(), seed=5), BatchOrder(load(), seed=5)
    epochs = [[int(row) for batch in torchs for row in batch] for _ in range(3)]
    assert [numbers(order, epoch) for epoch in range(3)] == epochs
    assert numbers(late, 2) == epochs[2], "also of one that begins later"
    assert numbers(late, 0) == epochs[0], "and of a batch that comes back"


@pytest.mark.thorough
def test_a_sampler_of_any_length_takes_no_time_and_memory() -> None:
    order = BatchOrder(DataLoader(range(ROWS), batch_size=4, sampler=replaced(None, 10**10)), seed=0)  # type: ignore[arg-type]
    batches = order.batches(0)
    first = batches[0]
    assert order.total == 10**10 // 4
    assert len(batches[300_000]) == 4
    assert batches._gone > 0, "the latest are kept"
    assert batches[0] == first, "drawn again"
    leases = DataLeases(3, stealing=False)
    leases.take(0, 0, 10**10, most=8)
    leases.left(0)
    assert leases.take(1, 0, 10**10, most=2) == ((0, 0), (0, 3)), "a dead worker's"
    again = DataLeases.restore(leases.state(()), 2, stealing=False)
    assert again.unvisited == 10**10


def judged(worker: ps.Worker, how: str) -> tuple[int, int]:
    """Trains on its part of a loader beside the first, then counts what a validation pass shows it."""
    model = nn.Linear(1, 1)
    model, optimizer, _, beside, validation = worker.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        [torch.ones(1)],
        *(DataLoader(torch.ones(n, 1), 4) for n in (32, 40)),
    )
    trained = 0
    for batch in beside:
        loops.descend(optimizer, model(batch).sum())
        trained += len(batch)
    seen = 0
    model.train(how != "in eval mode")
    with torch.set_grad_enabled(how != "around"):
        for batch in validation:
            with torch.no_grad():
                model(batch)
            seen += len(batch)
    assert len(validation) == 10
    return trained, seen


@pytest.mark.parametrize("how", ["around", "inside", "in eval mode"])
def test_a_validation_pass_sees_all_and_a_training_pass_its_part(how: str) -> None:
    run = ps.run(partial(judged, how=how), "async_sgd", workers=2, engine=SIMULATED)
    assert run.returned == [(16, 40), (16, 40)]


def evaluated_in_training(worker: ps.Worker) -> None:
    model = nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    for batch in worker.share(DataLoader(torch.ones(8, 1), 4)):
        model(batch).sum().backward()
        optimizer.step()


def test_training_on_what_all_are_given_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"every worker is given.*model\.train\(\)"):
        ps.run(evaluated_in_training, "sync_sgd", workers=2, engine=SIMULATED)


def attacked(worker: ps.Worker) -> int:
    """A pass in eval mode whose backward passes are for the data's sake: gradients stay, and nothing is trained."""
    model = nn.Linear(1, 1)
    model, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.eval()
    seen = 0
    for batch in worker.share(DataLoader(torch.ones(8, 1), 4)):
        model(batch.requires_grad_()).sum().backward()
        seen += len(batch)
    return seen


@pytest.mark.filterwarnings("ignore:nothing was trained")
def test_gradients_left_in_eval_mode_are_no_training() -> None:
    assert ps.run(attacked, "sync_sgd", workers=2, engine=SIMULATED).returned == [8, 8]


def plain_data(worker: ps.Worker) -> None:
    rows = np.ones((6, 1), dtype=np.float32)
    model = nn.Linear(1, 1)
    model, _, data, beside = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), rows, rows.copy())
    for one in (data, beside):
        trained = [type(row) for row in one]
        with torch.no_grad():
            assert [type(row) for row in one] == trained == [torch.Tensor] * 6


@pytest.mark.filterwarnings("ignore:nothing was trained")
def test_data_without_a_loader_comes_as_tensors_also_without_gradients() -> None:
    ps.run(plain_data, "sync_sgd", workers=1, engine=SIMULATED)


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


def test_a_sampler_without_length_or_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.worker.data.order.LENGTH_MAX", 1 << 14)
    sampled = DataLoader(range(ROWS), batch_sampler=None, batch_size=None, sampler=Endless())  # type: ignore[arg-type]
    with pytest.raises(ps.ConfigurationError, match=r"Endless has no length.*__len__"):
        BatchOrder(sampled, seed=0)


def a_loader_an_epoch(worker: ps.Worker) -> list[int]:
    model = nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seen: list[int] = []
    for epoch in range(3):
        rows = torch.arange(float(8)).reshape(8, 1) + 100 * epoch
        for batch in worker.share(DataLoader(rows, batch_size=2, shuffle=True)):
            loops.descend(optimizer, (model(batch) * 0).sum())
            seen += batch.flatten().int().tolist()
    return seen


def test_a_loader_an_epoch_is_shared_out() -> None:
    run = ps.run(a_loader_an_epoch, "sync_sgd", workers=2, engine=SIMULATED)
    first, second = run.returned
    assert sorted(first + second) == [100 * epoch + row for epoch in range(3) for row in range(8)]
    assert [row % 100 for row in first[:4]] != [row % 100 for row in first[4:8]], "another order each time"
