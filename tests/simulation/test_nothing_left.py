"""A simulated run leaks no descriptor and no memory, even before the cycle collector runs."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from support.processes import open_descriptors, shared_mappings
from support.replayed import Augmented, build
from support.runs import by_name


def train(worker: Any, fails: str = "") -> None:
    """`fails`: how worker 1 does in its third step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Augmented(), batch_size=8))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for step, (inputs, labels) in enumerate(loader):
        with worker.step():
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            if fails and (worker.rank, step) == (1, 2):
                fail(fails, worker, model)
            optimizer.step()
        schedule.step()


def fail(how: str, worker: Any, model: torch.nn.Module) -> None:
    if how == "raises":
        raise ValueError("no disk")
    if how == "is wrong":
        worker.log(loss="high")
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(float("nan"))


def fails_in_prepare(worker: Any) -> None:
    """Worker 1 shows another model when worker 0 waits to begin."""
    model = torch.nn.Linear(3, 2 + worker.rank)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


@contextlib.contextmanager
def nobody_looks_for_cycles() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def left() -> tuple[int, int]:
    return open_descriptors(), shared_mappings()


@pytest.mark.few(1)
@pytest.mark.parametrize("anonymous", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["memfd", "files"])
@pytest.mark.parametrize(
    "strategy", [ps.async_sgd(), ps.first_of(2), ps.buffered(2), ps.local_sgd(every=3)], ids=by_name
)
def test_simulated_runs_and_replays_leak_nothing(
    strategy: ps.Strategy, anonymous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not anonymous:
        monkeypatch.delattr(os, "memfd_create")
    simulated = partial(ps.run, train, strategy, workers=3, engine=ps.Simulated("uniform"), runs=tmp_path)
    first = simulated()  # torch imports some of itself at its first step
    with nobody_looks_for_cycles():
        before = left()
        runs = [simulated() for _ in range(4)]
        assert left() == before
        again = [ps.replay(first.folder, train) for _ in range(2)]
        assert left() == before
    for one in (*runs, *again):
        assert all(torch.equal(value, one.state_dict[name]) for name, value in first.state_dict.items())


@pytest.mark.few(1)
@pytest.mark.parametrize("how", ["raises", "is wrong", "is not finite", "in prepare"])
@pytest.mark.filterwarnings("ignore:.*held a NaN:RuntimeWarning")
def test_failed_simulated_runs_leak_nothing(how: str, tmp_path: Path) -> None:
    function = fails_in_prepare if how == "in prepare" else partial(train, fails=how)
    errors = (ps.WorkerError, ps.ConfigurationError, ps.NonFiniteError, ps.ModelMismatchError)

    def simulated() -> None:
        with pytest.raises(errors):
            ps.run(
                function, ps.async_sgd(), workers=3, engine=ps.Simulated("uniform"), runs=tmp_path, on_nonfinite="raise"
            )

    simulated()
    with nobody_looks_for_cycles():
        before = left()
        for _ in range(3):
            simulated()
        assert left() == before
