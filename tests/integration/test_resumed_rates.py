"""A resumed run goes on with what its loop had set, and with its schedules. What begins anew is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.long_forms import but_thorough

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


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "a schedule": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5),
    "by batch": lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=100),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 0.4, step_size_up=2),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.ExponentialLR(optimizer, 0.5)],
        milestones=[2],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 3), lr_scheduler.MultiStepLR(optimizer, [2, 4])]
    ),
}


def resuming(worker: ps.Worker, how: str) -> list[Any]:
    """After each epoch the loop sets the rate by hand, or a schedule does; or it sets what else there is, once."""
    model, optimizer = line()
    loader: Any = DataLoader(TensorDataset(X), batch_size=2)
    schedule = SCHEDULES[how](optimizer) if how in SCHEDULES else None
    given = schedule if how != "a schedule" else None
    model, optimizer, loader, prepared = worker.prepare(model, optimizer, loader, given)
    schedule = prepared or schedule
    group, found = optimizer.param_groups[0], []
    for epoch in worker.epochs(6):
        if how == "settings" and epoch == 1:
            group |= {"weight_decay": 0.1, "nesterov": True}
        for (inputs,) in loader:
            step(model, optimizer, inputs)
            if how == "by batch":
                schedule.step()
        if how == "by hand":
            group["lr"] *= 0.5
        elif how == "plateau":
            schedule.step(1.0)
        elif schedule is not None and how != "by batch":
            schedule.step()
        found.append([group[key] for key in ("lr", "momentum", "weight_decay", "nesterov")])
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("by hand", "goes on with lr 0.0125, which the loop had set earlier"),
        ("settings", "goes on with weight_decay 0.1, nesterov True, which the loop"),
        (
            "a schedule",
            "lr 0.1, as the optimizer was made; a schedule had moved it to 0.0125 earlier in this run: give the schedule",
        ),
        *((how, "") for how in ("by batch", "exponential", "cyclic", "plateau", "sequential", "chained")),
    ],
)
@pytest.mark.parametrize(
    "strategy", but_thorough([ps.sync_sgd(), ps.local_sgd(13)], {"sync_sgd"}), ids=["sync", "local"]
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_resumed_run_goes_on_with_its_settings_or_tells(
    how: str, told: str, strategy: ps.Strategy, tmp_path: Path
) -> None:
    run = partial(ps.run, partial(resuming, how=how), strategy, workers=2, engine=SIMULATED, runs=tmp_path)
    whole = run()
    half = run(checkpoint=ps.Checkpoint(), until=ps.Until(steps=26))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rest = run(resume=half.folder)
    words = [str(one.message) for one in caught if "training goes on with" in str(one.message)]
    assert any(told in one for one in words) if told else not words
    assert rest.version > half.version
    if how != "a schedule":
        assert [one[-1] for one in rest.returned] == [one[-1] for one in whole.returned]
    if how != "a schedule" and strategy == ps.sync_sgd():
        assert torch.equal(rest.state_dict["weight"], whole.state_dict["weight"])
