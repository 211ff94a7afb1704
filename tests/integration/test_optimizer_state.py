"""The script's own checkpoints: `optimizer.state_dict()` holds the state, wherever the optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support import loops
from support.long_forms import but_thorough, in_turn

Make = Callable[[Any], Optimizer]
KINDS: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.05, momentum=0.9, dampening=0.1),
    "Adam": partial(Adam, lr=0.01, amsgrad=True),
    "AdamW in groups": lambda one: AdamW(
        [{"params": list(one)[:2], "weight_decay": 0.0}, {"params": list(one)[2:]}], lr=0.01
    ),
    "NAdam": partial(NAdam, lr=0.01),
    "Adagrad": partial(Adagrad, lr=0.1),
    "Adafactor": partial(Adafactor, lr=0.01),
}


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def steps(model: nn.Module, optimizer: Optimizer, number: int, start: int = 0) -> None:
    source = torch.Generator().manual_seed(2)
    inputs = torch.randn(40, 8, 3, generator=source)
    for batch in inputs[start : start + number]:
        loops.descend(optimizer, model(batch).square().mean())


def saving(worker: ps.Worker, make: Make, file: str, number: int) -> None:
    model = network()
    model, optimizer = worker.prepare(model, make(list(model.parameters())))
    steps(model, optimizer, number)
    if worker.rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)


def going_on(worker: ps.Worker, make: Make, file: str, number: int, start: int) -> None:
    model = network()
    optimizer = make(list(model.parameters()))
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    model, optimizer = worker.prepare(model, optimizer)
    steps(model, optimizer, number, start)


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    return torch.equal(ours, theirs) if isinstance(theirs, torch.Tensor) else bool(ours == theirs)


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", but_thorough(["sync_sgd", "async_sgd"], {"async_sgd"}))
@pytest.mark.parametrize(("kind", "engine"), in_turn([*KINDS], ["processes", "simulated"]))
def test_state_is_torchs_and_goes_on_from_there(kind: str, strategy: str, engine: str, tmp_path: Path) -> None:
    make = KINDS[kind]
    file = str(tmp_path / "saved.pt")
    chosen: dict[str, Any] = {"workers": 1, "timeout_s": 30.0}
    if engine == "simulated":
        chosen = {"workers": 1, "engine": ps.Simulated("uniform")}
    model = network()
    optimizer = make(list(model.parameters()))
    steps(model, optimizer, 10)
    ps.run(partial(saving, make=make, file=file, number=10), strategy, **chosen)
    saved = torch.load(file)
    assert same(saved["optimizer"]["state"], optimizer.state_dict()["state"])
    assert same(saved["model"], model.state_dict())
    steps(model, optimizer, 10, 10)
    run = ps.run(partial(going_on, make=make, file=file, number=10, start=10), strategy, **chosen)
    assert same(run.state_dict, model.state_dict())


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [KINDS["SGD"], KINDS["Adam"]], ids=["SGD", "Adam"])
def test_state_saved_in_lock_step_goes_on_as_the_uninterrupted_run(make: Make, tmp_path: Path) -> None:
    file = str(tmp_path / "saved.pt")
    run = partial(ps.run, strategy="sync_sgd", workers=2, timeout_s=30.0)
    whole = run(partial(saving, make=make, file=file, number=20))
    run(partial(saving, make=make, file=file, number=10))
    rest = run(partial(going_on, make=make, file=file, number=10, start=10))
    assert same(rest.state_dict, whole.state_dict)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_counts_that_look_ahead_changes_are_saved_as_torch_has_them(workers: int, tmp_path: Path) -> None:
    """DANA counts Adam's steps N times as fast as a worker of N."""
    file = str(tmp_path / "saved.pt")
    part = partial(saving, make=KINDS["Adam"], file=file, number=10)
    ps.run(part, "async_sgd", workers=workers, engine=ps.Simulated("uniform"))
    counts = [float(one["step"]) for one in torch.load(file)["optimizer"]["state"].values()]
    assert all(10 - 1 <= count <= 10 + 1 for count in counts), counts


def pair(worker: ps.Worker, file: str) -> None:
    one, other = nn.Linear(3, 1), nn.Linear(3, 2)
    first, second = Adam(one.parameters()), SGD(other.parameters(), lr=0.1, momentum=0.9)
    one, other, first, second = worker.prepare(one, other, first, second)
    for model, optimizer in ((one, first), (other, second)):
        steps(model, optimizer, 5)
    torch.save([first.state_dict(), second.state_dict()], file)


@pytest.mark.parametrize("strategy", but_thorough(["sync_sgd", "async_sgd", "local_sgd"], {"async_sgd", "local_sgd"}))
def test_each_of_several_optimizers_has_its_own_state(strategy: str, tmp_path: Path) -> None:
    ps.run(partial(pair, file=str(tmp_path / "saved.pt")), strategy, workers=1, timeout_s=30.0)
    first, second = torch.load(tmp_path / "saved.pt")
    assert [sorted(one) for one in first["state"].values()] == [["exp_avg", "exp_avg_sq", "step"]] * 2
    assert [one["momentum_buffer"].shape for one in second["state"].values()] == [(2, 3), (2,)]


def whole_run(worker: ps.Worker, stops: bool) -> None:
    model = nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.arange(20.0)[:, None]), batch_size=2)
    model, optimizer, loader = worker.prepare(model, SGD(model.parameters(), lr=0.01), loader)
    for _ in worker.epochs(2):
        for (inputs,) in loader:
            loops.descend(optimizer, model(inputs).mean())


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", but_thorough(["sync_sgd", "async_sgd"], {"async_sgd"}))
def test_a_run_that_is_resumed_at_its_end_does_nothing_more(strategy: str, tmp_path: Path) -> None:
    part, keeping = partial(whole_run, stops=False), ps.Checkpoint()
    done = ps.run(part, strategy, workers=2, timeout_s=30.0, runs=tmp_path, checkpoint=keeping)
    assert done.folder is not None
    again = ps.run(part, strategy, workers=2, timeout_s=30.0, resume=done.folder)
    assert (again.steps, again.version) == (0, done.version)
    assert same(again.state_dict, done.state_dict)
