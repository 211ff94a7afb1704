"""Another strategy in flight computes what a run does that ends there and is resumed under the other one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Group
from plesio.server.checkpoints import latest
from plesio.strategy import Strategy
from support.loops import data, mlp

BATCHES, EPOCHS = 24, 3
OPTIMIZERS: dict[str, Any] = {
    "plain": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.AdamW, lr=0.01),
}
EVEN = (Group(3, Constant(0.1)),)
IN_LOCK_STEP = [
    (ps.sync_sgd(), 5, ps.local_sgd(4)),
    (ps.local_sgd(4), 2, ps.sync_sgd()),
    (ps.sync_sgd(), 4, ps.diloco(3)),
    (ps.diloco(4), 2, ps.sync_sgd()),
    (ps.local_sgd(2), 3, ps.diloco(3)),
    (ps.local_sgd(2, codec="int8"), 3, ps.local_sgd(4, codec="int8")),  # what packing left out goes on
    (ps.local_sgd(2, codec="int8"), 3, ps.sync_sgd()),
    (ps.sync_sgd(), 3, ps.local_sgd(2, codec="int8")),
]
ALONE = [
    (ps.sync_sgd(), 7, ps.async_sgd()),
    (ps.async_sgd(), 7, ps.diloco(3)),
    (ps.local_sgd(3), 4, ps.async_sgd()),
    (ps.async_sgd("delay_compensated"), 7, ps.local_sgd(4)),
    (ps.elastic_averaging(2), 4, ps.sync_sgd()),
]


def name_of(one: Any) -> str:
    return str(getattr(one, "name", one))


class OneProcess:
    """A script without plesio."""

    def prepare(self, *things: Any) -> Any:
        return things


def train(worker: Any, kind: str = "adam", found: dict[str, Any] | None = None, scheduled: bool = False) -> None:
    torch.manual_seed(11)
    model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.2))
    loader = DataLoader(TensorDataset(*data(4 * BATCHES)), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, OPTIMIZERS[kind](model.parameters()), loader)
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    if found is not None:
        found.update(model.state_dict())


def simulated(strategy: Any, kind: str = "adam", groups: Any = EVEN, **options: Any) -> ps.Run:
    workers = Cluster(groups).workers
    return ps.run(partial(train, kind=kind), strategy, workers=workers, engine=ps.Simulated(Cluster(groups)), **options)


def resumed(was: Strategy, version: int, now: Strategy, kind: str, groups: Any, folder: Path) -> ps.Run:
    """Ended at this version, and resumed under another strategy."""
    first = simulated(
        was,
        kind,
        groups,
        runs=folder,
        checkpoint=ps.Checkpoint(),
        until=ps.Until(steps=version * was.every.steps * Cluster(groups).workers),
    )
    assert first.folder is not None
    assert latest(first.folder).manifest.version == version
    return simulated(now, kind, groups, runs=folder, resume=first.folder)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.filterwarnings("ignore:resumed under", "ignore:.*outer momentum")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("was", "version", "now"), IN_LOCK_STEP, ids=name_of)
def test_a_switch_is_an_end_and_a_resumption(
    was: Strategy, version: int, now: Strategy, kind: str, tmp_path: Path
) -> None:
    switched = simulated(ps.phases(was, (version, now)), kind)
    twice = resumed(was, version, now, kind, EVEN, tmp_path)
    assert any(
        one.what.startswith(f"switched from {was.name} to {now.name} at version {version} ")
        for one in switched.incidents
    )
    assert (switched.version, switched.batches_unvisited) == (twice.version, 0)
    assert same(switched.state_dict, twice.state_dict)


@pytest.mark.filterwarnings("ignore:resumed under", "ignore:.*outer momentum")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("was", "version", "now"), ALONE, ids=name_of)
def test_one_worker_under_any_strategies(was: Strategy, version: int, now: Strategy, kind: str, tmp_path: Path) -> None:
    alone = (Group(1, Constant(0.1)),)
    switched = simulated(ps.phases(was, (version, now)), kind, alone)
    twice = resumed(was, version, now, kind, alone, tmp_path)
    assert switched.version == twice.version
    assert same(switched.state_dict, twice.state_dict)
