"""Rounds of batches that differ in size, and loops that each worker goes through."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support import loops

SIMULATED: Any = {"engine": ps.Simulated("uniform")}


def parts() -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs = torch.randn(45, 3) * torch.arange(1, 46).reshape(-1, 1) / 20
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        TensorDataset(inputs, torch.randint(2, (45,))),
    )


def train(worker: ps.Worker | None, batch: int = 8, tokens: int = 0, shared: bool = False) -> torch.Tensor:
    model, optimizer, data = parts()
    loader: Any = DataLoader(data, batch)
    if worker is not None:
        model, optimizer, loader = worker.prepare(model, optimizer, None if shared else loader)
        loader = worker.share(DataLoader(data, batch)) if shared else loader
    for inputs, labels in loader:
        optimizer.zero_grad()
        if worker is not None and tokens:
            worker.count(tokens * len(inputs))
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return next(model.parameters()).detach().clone()


def difference(strategy: Any, **settings: Any) -> tuple[float, int]:
    """From one worker with the whole batch, and the samples counted."""
    run = ps.run(lambda worker: train(worker, **settings), strategy, workers=2, **SIMULATED)
    return float((run.state_dict["weight"] - train(None, 16)).abs().max()), run.samples


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.allreduce().in_memory])
def test_lock_step_is_one_worker_with_all_samples_where_batches_differ(strategy: ps.Strategy) -> None:
    """The last round has a batch of 8 and one of 5."""
    for settings, samples in (({}, 45), ({"tokens": 100}, 4500), ({"shared": True}, 45)):
        off, counted = difference(strategy, **settings)
        assert off < 1e-6, settings
        assert counted == samples


def test_both_optimizers_of_two_weigh_by_the_samples_of_the_batch() -> None:
    def adversarial(worker: ps.Worker | None, batch: int = 8) -> torch.Tensor:
        torch.manual_seed(0)
        one, two = nn.Linear(3, 3), nn.Linear(3, 1)
        first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, two))
        loader: Any = DataLoader(parts()[2], batch)
        if worker is not None:
            one, two, first, second, loader = worker.prepare(one, two, first, second, loader)
        for inputs, _ in loader:
            loops.descend(second, two(one(inputs).detach()).sigmoid().mean() - two(inputs).sigmoid().mean())
            loops.descend(first, -two(one(inputs)).sigmoid().mean())
        return one.weight.detach().clone()

    run = ps.run(adversarial, "sync_sgd", workers=2, **SIMULATED)
    torch.testing.assert_close(run.state_dict["0.weight"], adversarial(None, 16), rtol=0, atol=1e-6)


def counts_late(worker: ps.Worker, steps: int) -> None:
    model = nn.Linear(3, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in worker.steps(steps):
        model(torch.ones(step + 1, 3)).mean().backward()
        optimizer.step()
        worker.count(samples=step + 1)


@pytest.mark.parametrize(("strategy", "workers"), [("sync_sgd", 1), ("async_sgd", 3), ("local_sgd", 1)])
def test_samples_counted_after_each_step_are_all_counted(strategy: str, workers: int) -> None:
    assert ps.run(partial(counts_late, steps=13), strategy, workers=workers, **SIMULATED).samples == sum(range(14))


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.local_sgd(), ps.allreduce().in_memory])
def test_a_count_that_comes_after_the_step_it_is_to_weigh_is_refused(strategy: ps.Strategy) -> None:
    with pytest.raises(ps.ConfigurationError, match=r"worker.count\(samples=.\) after .*; say worker.count before"):
        ps.run(partial(counts_late, steps=13), strategy, workers=2, **SIMULATED)


def alone(worker: ps.Worker, said: Callable[[ps.Worker], object] = lambda worker: None) -> None:
    model = nn.Linear(3, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        said(worker)
        optimizer.step()


@pytest.mark.parametrize("strategy", ["async_sgd", "sync_sgd", "local_sgd"])
def test_a_loop_that_every_worker_goes_through_is_told(strategy: str) -> None:
    with pytest.warns(
        RuntimeWarning, match="3 workers took 5 steps each and share no data; `worker.steps` shares them"
    ):
        run = ps.run(alone, strategy, workers=3, **SIMULATED)
    assert "3 workers took 5 steps each and share no data" in str(run)


def test_loops_that_share_or_count_or_are_ended_are_not_told() -> None:
    def steps(worker: ps.Worker) -> None:
        model = nn.Linear(3, 1)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in worker.steps(5):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    def ends(worker: ps.Worker) -> None:
        alone(worker, lambda worker: worker.stop("solved"))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for loop in (
            steps,
            ends,
            train,
            lambda worker: train(worker, shared=True),
            lambda worker: alone(worker, lambda worker: worker.count(8)),
            lambda worker: alone(worker, lambda worker: worker.counter("games").add(1)),
        ):
            ps.run(loop, "async_sgd", workers=2, **SIMULATED)
        ps.run(alone, "async_sgd", workers=1, **SIMULATED)
    assert not [str(one.message) for one in told if "share no data" in str(one.message)]
