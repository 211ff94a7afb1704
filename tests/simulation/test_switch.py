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
from plesio.cluster import Cluster, Constant, Group, LogNormal
from plesio.server.checkpoints import latest
from plesio.strategy import Strategy
from support.loops import data, descend, mlp
from support.runs import assert_replays, by_name, same

BATCHES, EPOCHS = 18, 2
OPTIMIZERS: dict[str, Any] = {
    "plain": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.AdamW, lr=0.01),
}
KINDS = ["adam", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("plain", "momentum"))]
EVEN, ALONE = (Group(3, Constant(0.1)),), (Group(1, Constant(0.1)),)
IN_LOCK_STEP = [
    (ps.sync_sgd(), 5, ps.local_sgd(4)),
    (ps.local_sgd(4), 2, ps.sync_sgd()),
    (ps.sync_sgd(), 4, ps.diloco(3)),
    (ps.diloco(4), 2, ps.sync_sgd()),
    (ps.local_sgd(2), 3, ps.diloco(3)),
    (ps.local_sgd(2, codec="int8"), 3, ps.local_sgd(4, codec="int8")),  # what packing left out goes on
    (ps.local_sgd(2, codec="int8"), 3, ps.sync_sgd()),
    (ps.sync_sgd(), 3, ps.local_sgd(2, codec="int8")),
    (ps.sync_sgd(codec="int8"), 5, ps.quorum(3, codec="int8")),
    (ps.sync_sgd(codec="int8"), 5, ps.local_sgd(4)),
    (ps.local_sgd(4), 2, ps.sync_sgd(codec="int8")),
]
OF_ONE = [
    (ps.sync_sgd(), 7, ps.async_sgd()),
    (ps.async_sgd(), 7, ps.diloco(3)),
    (ps.local_sgd(3), 4, ps.async_sgd()),
    (ps.async_sgd("delay_compensated"), 7, ps.local_sgd(4)),
    (ps.elastic_averaging(2), 4, ps.sync_sgd()),
]
AS_THE_SCRIPT = [
    (ps.sync_sgd(), ps.local_sgd(4)),
    (ps.local_sgd(3), ps.sync_sgd()),
    (ps.async_sgd(), ps.local_sgd(2)),
    (ps.local_sgd(2), ps.async_sgd()),
]


class OneProcess:
    """A script without plesio."""

    def prepare(self, *things: Any) -> Any:
        return things


def train(worker: Any, kind: str = "adam", found: dict[str, Any] | None = None, dtype: Any = torch.float32) -> None:
    torch.manual_seed(11)
    model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.2)).to(dtype)
    loader = DataLoader(TensorDataset(*data(4 * BATCHES)), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, OPTIMIZERS[kind](model.parameters()), loader)
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            descend(optimizer, cross_entropy(model(inputs.to(dtype)), labels))
    if found is not None:
        found.update(model.state_dict())


def by_rows(worker: Any) -> None:
    """Two optimizers, one of a table with sparse gradients."""
    torch.manual_seed(1)
    table, tower = torch.nn.Embedding(50, 4, sparse=True), torch.nn.Linear(4, 3)
    ours: Any = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    theirs: Any = torch.optim.SGD(tower.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.arange(4 * BATCHES) % 50, data(4 * BATCHES)[1]), batch_size=4, shuffle=True)
    table, tower, ours, theirs, loader = worker.prepare(table, tower, ours, theirs, loader)
    for _ in range(EPOCHS):
        for ids, labels in loader:
            for one in (ours, theirs):
                one.zero_grad()
            cross_entropy(tower(table(ids)), labels).backward()
            for one in (ours, theirs):
                one.step()


def several(worker: Any) -> None:
    """Two optimizers that step wherever the strategy says."""
    torch.manual_seed(1)
    first, second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    ours: Any = torch.optim.Adam(first.parameters(), lr=0.01)
    theirs: Any = torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(*data(4 * BATCHES)), batch_size=4, shuffle=True)
    first, second, ours, theirs, loader = worker.prepare(first, second, ours, theirs, loader)
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            for one in (ours, theirs):
                one.zero_grad()
            cross_entropy(second(first(inputs).relu()), labels).backward()
            for one in (ours, theirs):
                one.step()


def simulated(function: Any, strategy: Any, groups: Any = EVEN, **options: Any) -> ps.Run:
    cluster = Cluster(groups)
    return ps.run(function, strategy, workers=cluster.workers, engine=ps.Simulated(cluster), **options)


def stopped(function: Any, was: Strategy, version: int, groups: Any, folder: Path) -> Path:
    """The folder of a run that ended at this version."""
    until = ps.Until(steps=version * was.every.steps * Cluster(groups).workers)  # type: ignore[union-attr]
    first = simulated(function, was, groups, runs=folder, checkpoint=ps.Checkpoint(), until=until)
    assert latest(first.folder).manifest.version == version
    return first.folder


def check(function: Any, was: Strategy, version: int, now: Strategy, groups: Any, folder: Path) -> None:
    """A switch there gives what an end there and a resumption give."""
    switched = simulated(function, ps.phases(was, (version, now)), groups)
    twice = simulated(function, now, groups, runs=folder, resume=stopped(function, was, version, groups, folder))
    what = f"switched from {was.name} to {now.name} at version {version} "
    assert [one.what.startswith(what) for one in switched.incidents] == [True]
    assert (switched.version, switched.batches_unvisited) == (twice.version, 0)
    assert same(switched, twice)


pytestmark = pytest.mark.filterwarnings("ignore:resumed under", "ignore:.*outer momentum")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("was", "version", "now"), IN_LOCK_STEP, ids=by_name)
def test_in_lock_step(was: Strategy, version: int, now: Strategy, kind: str, tmp_path: Path) -> None:
    check(partial(train, kind=kind), was, version, now, EVEN, tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("was", "version", "now"), OF_ONE, ids=by_name)
def test_of_one_worker(was: Strategy, version: int, now: Strategy, kind: str, tmp_path: Path) -> None:
    check(partial(train, kind=kind), was, version, now, ALONE, tmp_path)


@pytest.mark.parametrize(
    ("was", "now"), [(ps.sync_sgd(), ps.local_sgd(2)), (ps.local_sgd(2), ps.sync_sgd())], ids=by_name
)
def test_half_precision_goes_on_with_what_rounding_took_off(was: Strategy, now: Strategy, tmp_path: Path) -> None:
    check(partial(train, dtype=torch.bfloat16), was, 4, now, EVEN, tmp_path)


def test_tables_with_sparse_gradients(tmp_path: Path) -> None:
    check(by_rows, ps.sync_sgd(), 10, ps.async_sgd(), ALONE, tmp_path)


@pytest.mark.parametrize(
    ("was", "now"), [(ps.sync_sgd(), ps.local_sgd(4)), (ps.local_sgd(4), ps.sync_sgd())], ids=by_name
)
def test_several_optimizers(was: Strategy, now: Strategy, tmp_path: Path) -> None:
    check(several, was, 4, now, EVEN, tmp_path)


def two_by_one_pass(worker: Any, found: dict[str, Any] | None = None) -> None:
    """One backward pass, and then the steps of two optimizers."""
    model = mlp()
    parts = [torch.optim.SGD(layer.parameters(), lr=0.05) for layer in (model[0], model[2])]
    loader = DataLoader(TensorDataset(*data(8 * BATCHES)), batch_size=8)
    model, *parts, loader = worker.prepare(model, *parts, loader)
    for inputs, labels in loader:
        for part in parts:
            part.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        for part in parts:
            part.step()
    if found is not None:
        found.update(model.state_dict())


@pytest.mark.parametrize("now", [ps.local_sgd(2), ps.async_sgd()], ids=by_name)
def test_a_switch_between_the_steps_of_two_optimizers_keeps_the_gradients_of_the_second(now: Strategy) -> None:
    whole: dict[str, Any] = {}
    two_by_one_pass(OneProcess(), whole)
    switched = simulated(two_by_one_pass, ps.phases(ps.sync_sgd(), (5, now)), ALONE)
    assert switched.summary.missing_gradients == 0
    assert same(whole, switched)


@pytest.mark.parametrize("was", [ps.async_sgd(), ps.first_of(2), ps.local_sgd(ps.Seconds(0.3))], ids=by_name)
def test_several_optimizers_do_not_come_out_of_step_into_rounds(was: Strategy) -> None:
    with pytest.raises(ps.ConfigurationError, match="2 optimizers, and of the phases sync_sgd"):
        simulated(two_by_one_pass, ps.phases(was, (5, ps.sync_sgd())))


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("was", "now"), AS_THE_SCRIPT, ids=by_name)
def test_one_worker_that_switches_there_and_back_is_the_script(was: Strategy, now: Strategy, kind: str) -> None:
    whole: dict[str, Any] = {}
    train(OneProcess(), kind, found=whole)
    switched = simulated(partial(train, kind=kind), ps.phases(was, (3, now), (7, was)), ALONE)
    assert len(switched.incidents) == 2
    assert same(whole, switched)


def test_a_run_is_resumed_in_the_phase_that_it_was_in(tmp_path: Path) -> None:
    plan = ps.phases(ps.sync_sgd(), (4, ps.local_sgd(3)), (9, ps.sync_sgd()))
    whole = simulated(train, plan)
    first = simulated(train, plan, runs=tmp_path, checkpoint=ps.Checkpoint(), until=ps.Until(steps=3 * 4 + 3 * 3 * 2))
    assert latest(first.folder).manifest.order.phase == 1
    second = simulated(train, plan, runs=tmp_path, resume=first.folder)
    assert same(whole, second)


def overflows(worker: Any) -> None:
    """Worker 0's fifth contribution of two steps is not finite, and its optimizer keeps what made it so."""
    model = mlp()
    loader = DataLoader(TensorDataset(*data(8 * BATCHES)), batch_size=4)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=10, momentum=0.9), loader)
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        for parameter in model.parameters():
            parameter.grad.mul_(1e-4)
            if worker.rank == 0 and step in (8, 9):
                parameter.grad.fill_(1e38)
        optimizer.step()


@pytest.mark.filterwarnings("ignore:worker 0. a contribution held a NaN")
def test_the_state_of_a_worker_that_overflowed_does_not_become_everybodys() -> None:
    run = simulated(overflows, ps.phases(ps.local_sgd(2), (5, ps.sync_sgd())))
    assert "that of worker 1 is everybody's now" in str(run.incidents)
    assert all(one.isfinite().all() for one in run.state_dict.values())


def test_other_rules_to_choose_by_are_no_other_strategy(tmp_path: Path) -> None:
    first, second = (ps.auto([ps.sync_sgd(), ps.async_sgd()], every_s=every_s) for every_s in (30.0, 10.0))
    begun = simulated(train, first, runs=tmp_path, checkpoint=ps.Checkpoint(), until=ps.Until(steps=12))
    resumed = simulated(train, second, runs=tmp_path, resume=begun.folder)
    assert not any(one.what.startswith("resumed under") for one in resumed.incidents)


@pytest.mark.parametrize("asked", [(1, 2, 0), ("local_sgd", "async_sgd", "sync_sgd")])
def test_live_switch_in_virtual_time(asked: tuple[Any, ...], tmp_path: Path) -> None:
    """Workers are not alike, so that a switch waits for the slowest; the run replays."""
    groups = (Group(1, Constant(0.3)), Group(2, LogNormal(0.1, 0.3)))
    plan, left = ps.phases(ps.sync_sgd(), ps.local_sgd(2), ps.async_sgd()), list(asked)

    def watch(live: Any) -> None:
        if live.steps > 7 * (4 - len(left)) and left:
            live.switch(left.pop(0))

    evaluate = {"evaluate": lambda model: {}, "evaluate_every_s": 0.05}
    run = simulated(train, plan, groups, runs=tmp_path, watch=watch, **evaluate)
    assert [one.what.split(" at ")[0].split(" to ")[1] for one in run.incidents] == [
        plan.phases[phase].name for phase in (1, 2, 0)
    ]
    assert run.batches_unvisited == 0
    assert_replays(run, train)
