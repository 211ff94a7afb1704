"""What training functions return is in `run.returned`."""

from __future__ import annotations

import os
import pickle
import threading
from collections import UserDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.launch.returned import packed
from plesio.protocol import launcher
from support import loops
from support.remote import head


class Figures(UserDict[str, int]):
    """A class of the user's."""


def trained(worker: ps.Worker) -> tuple[Any, ...]:
    model = nn.Linear(1, 1)
    optimizer: Any = SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.arange(16.0)[:, None]), batch_size=4)
    model, optimizer, loader = worker.prepare(model, optimizer, data)
    for (inputs,) in loader:
        loops.descend(optimizer, (0.0 * model(inputs)).sum())
    return model, loader


def returns(worker: ps.Worker) -> Figures:
    trained(worker)
    return Figures(rank=worker.rank)


def first_dies(worker: ps.Worker) -> object:
    model, _ = trained(worker)
    if worker.rank == 0:
        os._exit(1)
    return {"weights": model.state_dict()}


@pytest.mark.parametrize("strategy", ["async_sgd", "hogwild", "allreduce", "sync_sgd"])
def test_returned_values_are_in_the_order_of_ranks(strategy: str) -> None:
    run = ps.run(returns, strategy, workers=2, timeout_s=30.0)
    assert run.returned == [Figures(rank=0), Figures(rank=1)]


def test_simulated_workers_return_values_too() -> None:
    run = ps.run(returns, "async_sgd", workers=2, engine=ps.Simulated(ps.Cluster.preset("uniform", workers=2)))
    assert run.returned == [Figures(rank=0), Figures(rank=1)]


def test_a_worker_that_died_returned_none() -> None:
    run = ps.run(first_dies, "async_sgd", workers=2, timeout_s=30.0)
    assert run.returned[0] is None
    assert list(run.returned[1]["weights"]) == ["weight", "bias"]


def returns_a_class_of_its_own_process(worker: ps.Worker) -> object:
    trained(worker)
    return Elsewhere()


class Elsewhere:
    """Can be pickled, and not be read again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


@pytest.mark.parametrize("engine", ["local", ps.Simulated(ps.Cluster.preset("uniform", workers=2))], ids=str)
def test_a_value_that_cannot_be_read_again_does_not_cost_the_run(engine: Any) -> None:
    with pytest.warns(RuntimeWarning, match="returned cannot be read here and is not kept in run.returned"):
        run = ps.run(returns_a_class_of_its_own_process, "async_sgd", workers=2, engine=engine)
    assert (run.returned, run.steps) == ([None, None], 4)


@pytest.mark.parametrize(
    ("value", "why"), [(torch.zeros(5_000_000), "larger than 16 MiB"), (threading.Lock(), "cannot pickle")]
)
def test_what_cannot_travel_is_left_out_with_a_warning(value: object, why: str) -> None:
    with pytest.warns(RuntimeWarning, match=f"what worker 1 returned, a .*, is not kept in run.returned: .*{why}"):
        assert packed(value, 1) == b""


class Planted:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("said", ["Finished", "Returned"])
def test_nothing_from_another_host_is_unpickled(said: str, tmp_path: Path) -> None:
    planted = pickle.dumps(Planted(tmp_path / "was here"))
    fields = [("returned", bytes, planted), ("value", bytes, planted)]
    wrong = msgspec.defstruct(said, fields, tag=said)
    with head(rejoin_s=0.5) as door:
        door.fork(trained, enter=lambda: setattr(launcher, "Finished", wrong), rank=0)
        with suppress(ps.PlesioError):
            assert door.run("async_sgd", 1, timeout_s=20.0).returned == [None]
    assert not list(tmp_path.iterdir())
