"""A run that goes on with other data than before: `resume=..., data="new"`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.config import RunConfig
from plesio.server.checkpoints import latest
from plesio.strategy import Strategy
from support.loops import descend

DAYS = [torch.arange(64), torch.arange(1000, 1088)]
"""Ids; the second day has more."""


class OneProcess:
    """A script without plesio."""

    rank = 0

    def prepare(self, *things: Any) -> Any:
        return things


def train(worker: Any, days: tuple[int, ...], momentum: float = 0.9, found: list[Any] | None = None) -> list[float]:
    """One pass over each of these days' data; a schedule ends with each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    rates = []
    for day in days:
        loader: Any = DataLoader(TensorDataset(DAYS[day]), batch_size=8)
        schedule: Any = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(loader))
        model, optimizer, loader, schedule = worker.prepare(model, optimizer, loader, schedule)
        for (ids,) in loader:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.zero_grad()
            inputs = torch.stack([torch.sin(ids), torch.cos(ids)], dim=1)
            (model(inputs).flatten() - (ids % 7)).square().mean().backward()
            optimizer.step()
            schedule.step()
        for group in optimizer.param_groups:
            group["lr"] = group.pop("initial_lr", 0.1)
    if found is not None:
        found.append(dict(model.state_dict()))
    return rates


def with_table(worker: ps.Worker, day: int) -> None:
    net: Any = torch.nn.ModuleDict({"ids": ps.Table(4), "top": torch.nn.Linear(4, 1)})
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.05)
    net, optimizer, loader = worker.prepare(net, optimizer, DataLoader(TensorDataset(DAYS[day]), batch_size=8))
    for (ids,) in loader:
        descend(optimizer, net["top"](net["ids"](ids)).square().mean())


def simulated(function: Any, strategy: Any, workers: int, folder: Path, **more: Any) -> ps.Run:
    keep = ps.Checkpoint()
    return ps.run(
        function, strategy, workers=workers, engine=ps.Simulated("uniform"), runs=folder, checkpoint=keep, **more
    )


@pytest.mark.parametrize(
    ("strategy", "momentum"),
    [(ps.sync_sgd(), 0.9), (ps.local_sgd(3), 0.9), (ps.async_sgd(), 0.0)],
    ids=["sync", "local", "async"],
)
def test_one_worker_goes_on_as_a_script_of_both_days(strategy: Strategy, momentum: float, tmp_path: Path) -> None:
    found: list[Any] = []
    rates = train(OneProcess(), (0, 1), momentum, found)
    first = simulated(partial(train, days=(0,), momentum=momentum), strategy, 1, tmp_path)
    second = simulated(
        partial(train, days=(1,), momentum=momentum), strategy, 1, tmp_path, resume=first.folder, data="new"
    )
    assert first.returned[0] + second.returned[0] == rates
    assert all(torch.equal(value, second.state_dict[name]) for name, value in found[0].items())


@pytest.mark.parametrize(("strategy", "workers"), [("sync_sgd", 2), ("async_sgd", 3), (ps.local_sgd(2), 2)], ids=str)
def test_every_sample_of_the_new_data_is_visited_and_rows_go_on(strategy: Any, workers: int, tmp_path: Path) -> None:
    first = simulated(partial(with_table, day=0), strategy, 2, tmp_path)
    second = simulated(partial(with_table, day=1), strategy, workers, tmp_path, resume=first.folder, data="new")
    assert (first.samples, second.samples, second.batches_unvisited) == (64, 88, 0)
    assert (first.tables["ids"].rows, second.tables["ids"].rows) == (64, 152)
    assert second.version > first.version
    words = second.incidents[1].what
    assert words.startswith("the data is new: epochs and schedules begin anew")
    assert "beside 64 before in 8 steps" in words
    assert latest(second.folder).manifest.samples == 152
    with pytest.raises(ps.ReplayError, match=r"begins at version .*, with new data: .* cannot be replayed"):
        ps.replay(second.folder, partial(with_table, day=1))


def test_a_day_that_was_interrupted_goes_on_in_its_data(tmp_path: Path) -> None:
    first = simulated(partial(with_table, day=0), "async_sgd", 2, tmp_path)
    half = ps.Until(steps=8 + 5)
    second = simulated(
        partial(with_table, day=1), "async_sgd", 2, tmp_path, resume=first.folder, data="new", until=half
    )
    third = simulated(partial(with_table, day=1), "async_sgd", 2, tmp_path, resume=second.folder)
    assert second.samples + third.samples == 88
    assert third.tables["ids"].rows == 152


def test_what_a_finished_run_gives_out_no_more_is_told(tmp_path: Path) -> None:
    first = simulated(partial(with_table, day=0), "async_sgd", 2, tmp_path)
    with pytest.warns(RuntimeWarning, match="no step was made: .* If its data is new, say data='new'"):
        simulated(partial(with_table, day=0), "async_sgd", 2, tmp_path, resume=first.folder)
    with pytest.raises(ps.ConfigurationError, match="the resumed run's 8; give all the same data, or say data"):
        simulated(partial(with_table, day=1), "async_sgd", 2, tmp_path, resume=first.folder)
    with pytest.raises(
        ps.ConfigurationError, match="data='new' is for a run that goes on from another one: give resume="
    ):
        RunConfig(strategy=ps.async_sgd(), workers=1, data="new")
