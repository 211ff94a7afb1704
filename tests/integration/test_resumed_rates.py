"""What a resumed run begins anew is told: rates set by hand, schedules that were not prepared, epochs that were done."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

SIMULATED = ps.Simulated("uniform")
X = torch.randn(14, 3, generator=torch.Generator().manual_seed(1))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    optimizer.zero_grad()
    (model(inputs) - 1.0).square().mean().backward()
    optimizer.step()


def line() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def resuming(worker: ps.Worker, how: str) -> list[float]:
    """The rate is halved after each epoch, by hand, by a schedule that is not prepared, or by one that follows a metric."""
    model, optimizer = line()
    loader: Any = DataLoader(TensorDataset(X), batch_size=2)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    more = {"prepared": schedule, "plateau": plateau}.get(how)
    model, optimizer, loader, _ = worker.prepare(model, optimizer, loader, more)
    rates = []
    for _ in worker.epochs(6):
        for (inputs,) in loader:
            step(model, optimizer, inputs)
        if how == "by hand":
            optimizer.param_groups[0]["lr"] *= 0.5
        elif how == "plateau":
            plateau.step(1.0)
        else:
            schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("by hand", "goes on with the learning rate 0.1, as the optimizer was made, and had 0.0"),
        ("a schedule", "goes on with the learning rate 0.1, as the optimizer was made, and had 0.0"),
        ("plateau", "ReduceLROnPlateau begins anew"),
        ("prepared", ""),
    ],
)
@pytest.mark.parametrize("strategy", ["sync_sgd", "local_sgd"])
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_what_a_resumed_run_begins_anew_is_told(how: str, told: str, strategy: str, tmp_path: Path) -> None:
    run = partial(ps.run, partial(resuming, how=how), strategy, workers=2, engine=SIMULATED, runs=tmp_path)
    half = run(checkpoint=ps.Checkpoint(), until=ps.Until(steps=24))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rest = run(resume=half.folder)
    words = [str(one.message) for one in caught]
    assert any(told in one for one in words) if told else not any("as the optimizer was made" in one for one in words)
    assert rest.version > half.version
