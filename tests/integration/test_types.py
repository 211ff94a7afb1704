"""What a type checker knows of a script. `make types` checks this file: a typo that passed would be an unused `type: ignore`."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import assert_type

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader

import plesio as ps
from plesio.observe.summary import Evaluation, Logged
from plesio.observe.totals import RowServer, RowsSummary

Loader = DataLoader[torch.Tensor]


def prepared(worker: ps.Worker) -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    loader: Loader = DataLoader([torch.ones(2)] * 8, batch_size=4)  # type: ignore[arg-type]  # a list is no Dataset
    ours = worker.prepare(model, optimizer, None, trainable="all")
    assert_type(ours, tuple[nn.Linear, SGD, None])
    model, optimizer, _ = ours
    scheduler = worker.prepare(LinearLR(optimizer))
    assert_type(scheduler, LinearLR)
    for inputs in assert_type(worker.share(loader), Loader):
        model(inputs).sum().backward()
        optimizer.step()
        with suppress(AttributeError):
            optimizer.setp()  # type: ignore[attr-defined]
        scheduler.step()


def test_a_typed_script_runs() -> None:
    run = ps.run(prepared, ps.sync_sgd(), workers=1, engine=ps.Simulated("uniform"))
    assert assert_type(run.steps, int) == 2
    assert_type(run.history, tuple[Evaluation, ...])
    assert_type(run.rows, dict[str, RowsSummary])
    assert_type(run.row_servers, tuple[RowServer, ...])
    assert_type(run.final("loss"), float | None)
    assert [one.steps for one in assert_type(run.logged, tuple[Logged, ...])] == []
    with pytest.raises(AttributeError, match="histroy"):
        run.histroy  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="asink_sgd"):
        ps.asink_sgd  # type: ignore[attr-defined]  # noqa: B018


def test_a_round_shows_no_private_arguments() -> None:
    assert not [name for name in signature(ps.Round).parameters if name.startswith("_")]
