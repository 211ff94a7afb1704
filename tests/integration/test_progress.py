"""Schedules that end where the training ends, and loops that the run counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.strategy.answers import AllReduce
from support import loops
from support.long_forms import but_thorough, in_turn

BATCHES, EPOCHS = 12, 3
ALL = BATCHES * EPOCHS
Make = Callable[[Optimizer], LRScheduler]
BY_BATCH: dict[str, Make] = {
    "OneCycle": lambda one: OneCycleLR(one, max_lr=0.5, total_steps=ALL),
    "cosine": lambda one: CosineAnnealingLR(one, T_max=ALL),
    "warm-up, then cosine": lambda one: SequentialLR(
        one, [LinearLR(one, 0.1, total_iters=6), CosineAnnealingLR(one, ALL - 6)], milestones=[6]
    ),
    "lambda": lambda one: LambdaLR(one, lambda step: 1.0 - step / ALL),
}
STRATEGIES: list[Any] = ["sync_sgd", "async_sgd", ps.local_sgd(2), "hogwild", ps.allreduce("torch")]
each_schedule = pytest.mark.parametrize(("name", "strategy"), in_turn([*BY_BATCH], STRATEGIES), ids=str)


def data() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(48.0)[:, None]), batch_size=4)


def rates_of(schedule: Any) -> list[float]:
    return [float(one) for one in schedule.get_last_lr()]


def scheduled(worker: ps.Worker, make: Make, by: str, folder: str, accumulate: int = 1, slow: bool = False) -> None:
    model = nn.Linear(1, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.2)
    schedule: Any = make(optimizer)
    model, optimizer, loader, schedule = worker.prepare(model, optimizer, data(), schedule)
    assert isinstance(schedule, LRScheduler)
    rates = rates_of(schedule)
    for _ in range(EPOCHS):
        for number, (inputs,) in enumerate(loader):
            if slow and worker.rank == 0:
                time.sleep(0.01)
            (0.0 * model(inputs)).sum().backward()
            if number % accumulate == accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
                if by == "batch":
                    schedule.step()
                    rates += rates_of(schedule)
        if by == "epoch":
            schedule.step()
            rates += rates_of(schedule)
    rates += rates_of(schedule)
    assert optimizer.param_groups[0]["lr"] == rates[-1]
    Path(folder, f"{worker.rank}-{time.time_ns()}").write_text(" ".join(map(repr, rates)))


def rates_in(folder: Path) -> list[list[float]]:
    return [list(map(float, one.read_text().split())) for one in sorted(folder.iterdir())]


def wanted(make: Make, calls: int) -> list[float]:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.2)
    schedule = make(optimizer)
    rates = rates_of(schedule)
    for _ in range(calls):
        optimizer.step()
        schedule.step()
        rates += rates_of(schedule)
    return rates


@each_schedule
def test_schedule_by_batch_is_torchs_with_one_worker(name: str, strategy: Any, tmp_path: Path) -> None:
    make = BY_BATCH[name]
    ps.run(partial(scheduled, make=make, by="batch", folder=str(tmp_path)), strategy, workers=1, timeout_s=30.0)
    (rates,) = rates_in(tmp_path)
    assert rates[:-1] == wanted(make, ALL)


@pytest.mark.few(2)
@each_schedule
def test_schedule_by_batch_ends_at_its_end_on_every_worker(name: str, strategy: Any, tmp_path: Path) -> None:
    """One worker is much faster than the other."""
    make = BY_BATCH[name]
    part = partial(scheduled, make=make, by="batch", folder=str(tmp_path), slow=True)
    ps.run(part, strategy, workers=2, timeout_s=30.0)
    path = wanted(make, ALL)
    for rates in rates_in(tmp_path):
        assert rates[-1] == path[-1]
        assert set(rates) <= set(path)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd"])
def test_schedule_by_epoch_is_torchs(strategy: str, workers: int, tmp_path: Path) -> None:
    make = partial(StepLR, step_size=1, gamma=0.5)
    ps.run(partial(scheduled, make=make, by="epoch", folder=str(tmp_path)), strategy, workers=workers, timeout_s=30.0)
    for rates in rates_in(tmp_path):
        assert rates[:-1] == wanted(make, EPOCHS)


@pytest.mark.parametrize("workers", [1, 2])
def test_schedule_by_accumulated_batch_counts_its_calls(workers: int, tmp_path: Path) -> None:
    make = partial(CosineAnnealingLR, T_max=ALL // 3)
    part = partial(scheduled, make=make, by="batch", folder=str(tmp_path), accumulate=3)
    ps.run(part, "sync_sgd", workers=workers, timeout_s=30.0)
    path = wanted(make, ALL // 3)
    for rates in rates_in(tmp_path):
        assert rates[:-1] == (path if workers == 1 else path[::2])


def resumed(worker: ps.Worker, make: Make, folder: str, stop_at: int) -> None:
    model = nn.Linear(1, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.2)
    model, loader, optimizer, schedule = worker.prepare(model, data(), optimizer, make(optimizer))
    rates, seen = [], []
    for epoch in worker.epochs(EPOCHS):
        seen.append(epoch)
        for (inputs,) in loader:
            loops.descend(optimizer, (0.0 * model(inputs)).sum())
            schedule.step()
            rates += rates_of(schedule)
            if worker.version == stop_at:
                worker.stop("half of it")
                time.sleep(0.5)
    Path(folder, f"{worker.rank}-{time.time_ns()}").write_text(" ".join(map(repr, [*rates, *seen])))


@pytest.mark.thorough
def test_schedule_and_epochs_of_a_resumed_run_go_on_where_it_was(tmp_path: Path) -> None:
    make, folder = BY_BATCH["cosine"], tmp_path / "rates"
    folder.mkdir()
    part = partial(resumed, make=make, folder=str(folder))
    runs, keeping = tmp_path / "runs", ps.Checkpoint()
    first = ps.run(partial(part, stop_at=20), "sync_sgd", workers=1, timeout_s=30.0, runs=runs, checkpoint=keeping)
    assert first.folder is not None
    for file in folder.iterdir():
        file.unlink()
    rest = ps.run(partial(part, stop_at=-1), "sync_sgd", workers=1, timeout_s=30.0, resume=first.folder)
    (rates,) = rates_in(folder)
    assert rates == [*wanted(make, ALL)[-rest.steps :], 1, 2]
    assert 0 < rest.steps <= ALL - 20


def plateau(worker: ps.Worker) -> None:
    model = nn.Linear(1, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = worker.prepare(model, optimizer, data())
    schedule = worker.prepare(ReduceLROnPlateau(optimizer, factor=0.5, patience=0))
    assert [*schedule] == [schedule], "(schedule,) = worker.prepare(schedule) goes on"
    for _ in range(EPOCHS):
        for (inputs,) in loader:
            loops.descend(optimizer, (0.0 * model(inputs)).sum())
        schedule.step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_schedule_made_after_prepare_follows_its_metric() -> None:
    assert ps.run(plateau, "async_sgd", workers=1, timeout_s=30.0).steps == ALL


# Loops that draw their own data


def counted(worker: ps.Worker, folder: str, number: int = 40, late: bool = False) -> None:
    model = nn.Linear(1, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.01)
    model, optimizer = worker.prepare(model, optimizer)
    schedule = worker.prepare(LinearLR(optimizer, 1.0, 0.0, total_iters=number))
    seen = []
    for step in worker.steps(number):
        optimizer.zero_grad()
        model(torch.rand(16, 1)).sum().backward()
        if not late:
            worker.count(samples=16)
        optimizer.step()
        schedule.step()
        if late:
            worker.count(samples=16)
        seen.append(step)
    Path(folder, f"{worker.rank}-{time.time_ns()}").write_text(" ".join(map(str, seen)))
    assert optimizer.param_groups[0]["lr"] == 0.0, "the schedule ends with the steps"


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("workers", but_thorough([1, 2], {2}))
def test_workers_together_make_the_steps_of_the_script(strategy: Any, workers: int, tmp_path: Path) -> None:
    part = partial(counted, folder=str(tmp_path), late=workers == 1 or strategy in ("async_sgd", "hogwild"))
    run = ps.run(part, strategy, workers=workers, timeout_s=30.0)
    each = workers if getattr(strategy, "via", None) == AllReduce("torch") else 1  # a step of all counts once
    assert (run.steps * each, run.samples, run.batches_unvisited) == (40, 640, 0)
    assert sorted(int(one) for rates in rates_in(tmp_path) for one in rates) == list(range(40))


def test_counted_samples_end_a_run(tmp_path: Path) -> None:
    part = partial(counted, folder=str(tmp_path), number=100_000)
    run = ps.run(part, "async_sgd", workers=2, timeout_s=30.0, until=ps.Until(samples=3200))
    assert 3200 <= run.samples < 1_600_000


@pytest.mark.thorough
def test_resumed_run_makes_the_steps_that_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "seen"
    folder.mkdir()
    part = partial(counted, folder=str(folder), number=400)
    runs, keeping = tmp_path / "runs", ps.Checkpoint()
    first = ps.run(part, "sync_sgd", workers=2, timeout_s=30.0, until=ps.Until(steps=40), runs=runs, checkpoint=keeping)
    assert first.folder is not None
    rest = ps.run(part, "sync_sgd", workers=2, timeout_s=30.0, resume=first.folder)
    assert 0 < rest.steps < 400
    assert rest.version == 200


def wrong(worker: ps.Worker, how: str) -> None:
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    if how == "steps before":
        worker.steps(3)
    if how == "beside a loader":
        worker.prepare(model, optimizer, data())
        worker.steps(3)
    worker.prepare(model, optimizer)
    if how == "two numbers":
        next(worker.steps(4))
        worker.steps(5)
    if how == "half a step":
        worker.steps(2.5)  # type: ignore[arg-type]
    if how == "epochs":
        next(worker.epochs(2))
    worker.count(samples=-1)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("steps before", "worker.steps before prepare"),
        ("beside a loader", "beside a prepared loader: the run's steps are its batches"),
        ("two numbers", r"worker.steps\(5\) after worker.steps\(4\)"),
        ("half a step", r"worker.steps\(2.5\): a whole number"),
        ("epochs", "was given no loader; loop over worker.steps"),
        ("count", r"worker.count\(-1\)"),
    ],
)
def test_wrong_use_of_counted_loops_is_refused_with_what_to_do(how: str, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(partial(wrong, how=how), "async_sgd", workers=1, timeout_s=30.0)


def reads_its_own(worker: ps.Worker) -> None:
    model = nn.Linear(1, 1)
    own = data()
    model, optimizer, _ = worker.prepare(model, SGD(model.parameters(), lr=0.01), own)
    for (inputs,) in own:
        loops.descend(optimizer, model(inputs).sum())


def test_a_prepared_loader_that_nobody_reads_is_told() -> None:
    with pytest.warns(RuntimeWarning, match=r"worker \d never read a prepared loader \(over a TensorDataset\)"):
        ps.run(reads_its_own, "async_sgd", workers=2, engine=ps.Simulated("uniform"))


class Unrated(SGD):
    """Its rate has another name than torch's."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["rate"] = group.pop("lr")


def unrated(worker: ps.Worker) -> None:
    model = nn.Linear(1, 1)
    worker.prepare(model, Unrated(model.parameters()))


@pytest.mark.parametrize("strategy", ["sync_sgd", "hogwild"])
def test_an_optimizer_whose_rate_has_another_name_is_refused(strategy: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=r"Unrated has no setting 'lr' .it has .*rate"):
        ps.run(unrated, strategy, workers=1, timeout_s=30.0)


LATER: dict[str, Callable[[Any, int], Any]] = {
    "linear": lambda one, steps: LambdaLR(one, lambda step: max(0.0, 1.0 - step / steps)),
    "cosine": lambda one, steps: CosineAnnealingLR(one, T_max=steps),
    "polynomial": lambda one, steps: PolynomialLR(one, total_iters=steps, power=2.0),
    "OneCycle": lambda one, steps: OneCycleLR(
        one, max_lr=0.1, total_steps=steps + 1, pct_start=0.0, anneal_strategy="linear"
    ),
}


def built_later(worker: ps.Worker, make: Callable[[Any, int], Any], accumulate: int) -> list[float]:
    """The rate of each step, by a schedule that was built with the prepared loader's length."""
    net = nn.Linear(1, 1)
    optimizer: Any = SGD(net.parameters(), lr=0.1)
    net, optimizer, loader = worker.prepare(net, optimizer, data())
    schedule = worker.prepare(make(optimizer, 3 * ceil(len(loader) / accumulate)))
    rates = []
    for _ in worker.epochs(3):
        for number, (inputs,) in enumerate(loader):
            net(0.01 * inputs).square().mean().backward()
            if number % accumulate == accumulate - 1:
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return [*rates, optimizer.param_groups[0]["lr"]]


@pytest.mark.few(9)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("strategy", "cluster"), [("sync_sgd", "uniform"), (ps.local_sgd(3), "uniform"), ("async_sgd", "one-straggler")]
)
@pytest.mark.parametrize("name", LATER)
def test_a_schedule_built_after_prepare_ends_where_the_training_ends(
    name: str, strategy: Any, cluster: str, accumulate: int
) -> None:
    train = partial(built_later, make=LATER[name], accumulate=accumulate)
    with pytest.warns(RuntimeWarning, match="was built after prepare, and len.loader. is one worker's part by then"):
        run = ps.run(train, strategy, workers=2, engine=ps.Simulated(cluster))
    for rates in run.returned:
        assert rates == sorted(rates, reverse=True), "it does not rise again"
        assert rates.count(0.0) <= 2, "steps were taken at a rate"
        assert rates[-1] < 0.03, "and it came to its end"


def by_epoch_later(worker: ps.Worker) -> float:
    """The script asks for the loader's length, and its schedule goes by epoch."""
    net = nn.Linear(1, 1)
    optimizer: Any = SGD(net.parameters(), lr=0.8)
    net, optimizer, loader = worker.prepare(net, optimizer, data())
    assert len(loader) < len(data())
    schedule = worker.prepare(StepLR(optimizer, 1, gamma=0.5))
    for _ in worker.epochs(3):
        for (inputs,) in loader:
            loops.descend(optimizer, net(inputs).sum())
        schedule.step()
    return float(optimizer.param_groups[0]["lr"])


@pytest.mark.filterwarnings("error:.*was built after prepare")
def test_a_schedule_by_epoch_that_is_built_after_prepare_counts_epochs() -> None:
    assert ps.run(by_epoch_later, "sync_sgd", workers=2, engine=ps.Simulated("uniform")).returned == [0.1, 0.1]
