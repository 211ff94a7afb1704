"""Workers that go on while their answers travel, in virtual time: nothing is lost or doubled, and a replay gives the same bits.

The model counts (`support.row_each`), and a fold takes a quarter of what a step took. If the rows of a whole run are not all the
same, a batch was lost or folded twice.
"""

from __future__ import annotations

import inspect
import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from conformance.table import makers
from plesio.cluster import Cluster, Constant, Crash, Group, Link, LogNormal, Restart
from plesio.core.events import Pushed
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy, answers, recipes
from support.long_forms import but_slow
from support.loops import descend
from support.replayed import chancy
from support.row_each import row_each
from support.runs import assert_replays, by_name, same

pytestmark = [
    pytest.mark.filterwarnings("ignore:the training function called time.sleep:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*a contribution held a NaN:RuntimeWarning"),
]
WORKERS, SAMPLES, BATCH = 4, 384, 4
GROUPS = (Group(2, LogNormal(0.02, 0.3), Link(0.035)), Group(2, LogNormal(0.02, 0.3)))
SETTINGS = {name: inspect.signature(recipes.RECIPES[name]).parameters for name in makers()}
NAMES = [name for name, settings in SETTINGS.items() if "overlap" in settings or "ahead" in settings]
EACH = [ps.async_local_sgd(3, overlap=True), ps.async_sgd("plain", ahead=1)]


def late(name: str) -> Strategy:
    known = SETTINGS[name]
    short = {"every": 3} if name != "post_local_sgd" else {"every": 3, "after": 4}
    settings = {key: value for key, value in short.items() if key in known}
    return recipes.recipe(name, **settings, **({"overlap": True} if "overlap" in known else {"ahead": 1}))


def counting(worker: ps.Worker, spoilt: tuple[int, int] = (-1, 0)) -> None:
    """One epoch; the loss of that worker's step is `spoilt`."""
    model, optimizer, loader = row_each(worker, SAMPLES, BATCH)
    for step, (samples,) in enumerate(loader, 1):
        descend(optimizer, model(samples).sum() * (float("nan") if (worker.rank, step) == spoilt else 1.0))


def rows(run: ps.Run) -> torch.Tensor:
    return -WORKERS * run.state_dict["weight"].flatten()


def simulated(train: Any, strategy: Strategy, folder: Path, faults: Any = (), **options: Any) -> ps.Run:
    cluster = Cluster(GROUPS, faults=tuple(faults))
    return ps.run(train, strategy, workers=WORKERS, engine=ps.Simulated(cluster), runs=folder, seed=2, **options)


def adopted(run: ps.Run) -> list[int]:
    """At which step of each contribution the answer before was taken."""
    events = (one.event for one in read_journal(run.folder).decisions())
    return [one.adopted_at for one in events if isinstance(one, Pushed)]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_that_goes_on_replays_bit_for_bit(name: str, tmp_path: Path) -> None:
    faults = [Crash(worker=0, at_s=0.31), Restart(worker=0, at_s=0.5), Crash(worker=2, at_s=0.4)]
    run = simulated(chancy, late(name), tmp_path, faults)
    assert any(adopted(run)), "it went on"
    assert_replays(run, chancy)


@pytest.mark.parametrize("packed", [None, "int8"])
def test_packed_answers_that_are_taken_late_replay_bit_for_bit(packed: Any, tmp_path: Path) -> None:
    run = simulated(chancy, ps.diloco(3, codec=packed, overlap=True), tmp_path)
    assert_replays(run, chancy)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", but_slow(range(12), {0, 1, 2}))
@pytest.mark.parametrize("strategy", [ps.async_local_sgd(3, overlap=True), ps.async_sgd("plain", ahead=1)], ids=by_name)
def test_deaths_of_workers_that_go_on_lose_no_batch_and_double_none(
    strategy: Strategy, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    faults: list[Any] = []
    for worker in (0, 2, 3):
        at_s = rng.uniform(0.02, 0.6)
        faults += [Crash(worker=worker, at_s=at_s), Restart(worker=worker, at_s=at_s + rng.uniform(0.01, 0.3))]
    run = simulated(counting, strategy, tmp_path, faults)
    assert any(adopted(run)), "it went on"
    assert torch.equal(rows(run), torch.ones(SAMPLES))
    assert run.samples - sum(one.in_vain for one in run.workers) * BATCH == SAMPLES


@pytest.mark.thorough
def test_a_resumed_run_makes_up_for_what_was_in_flight(tmp_path: Path) -> None:
    """What workers did since they sent last is in no checkpoint: it is undone, and its data leased again."""
    strategy = ps.async_local_sgd(3, overlap=True)
    first = simulated(counting, strategy, tmp_path, checkpoint=ps.Checkpoint(), until=ps.Until(steps=45))
    resumed = [simulated(counting, strategy, tmp_path, resume=first.folder) for _ in range(2)]
    assert 0 < rows(first).sum() < SAMPLES
    for run in resumed:
        assert torch.equal(rows(run), torch.ones(SAMPLES))
    assert_replays(first, counting)


@pytest.mark.thorough
def test_resumed_rounds_that_go_on_give_the_same_bits_each_time(tmp_path: Path) -> None:
    strategy = ps.diloco(3, codec="int8", overlap=True)
    first = simulated(chancy, strategy, tmp_path, checkpoint=ps.Checkpoint(), until=ps.Until(steps=30))
    one, other = (simulated(chancy, strategy, tmp_path, resume=first.folder) for _ in range(2))
    assert one.version == other.version > first.version
    assert same(one, other)


def test_by_default_only_workers_whose_messages_take_time_go_on(tmp_path: Path) -> None:
    run = simulated(counting, ps.async_local_sgd(3), tmp_path)
    events = (one.event for one in read_journal(run.folder).decisions())
    went_on = {one.worker for one in events if isinstance(one, Pushed) and one.adopted_at}
    assert went_on == {0, 1}


def trained(worker: ps.Worker, make: Any) -> None:
    model = nn.Linear(2, 1)
    data = DataLoader(TensorDataset(torch.randn(96, 2), torch.randn(96, 1)), batch_size=4)
    model, optimizer, loader = worker.prepare(model, make(model.parameters()), data)
    for inputs, targets in loader:
        descend(optimizer, nn.functional.mse_loss(model(inputs), targets))


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("strategy", "make", "expected"),
    [
        (ps.local_sgd(3), partial(torch.optim.SGD, lr=0.01, momentum=0.9), set()),
        (ps.diloco(3), partial(torch.optim.SGD, lr=0.01, momentum=0.9), set()),
        (ps.local_sgd(3, overlap=True), partial(torch.optim.SGD, lr=0.01, momentum=0.9), {0, 1, 2, 3}),
        (ps.async_local_sgd(3), partial(torch.optim.SGD, lr=0.01, momentum=0.9), {0, 1}),
        (ps.local_sgd(3), partial(torch.optim.SGD, lr=0.01), {0, 1}),
        (ps.local_sgd(3), torch.optim.AdamW, {0, 1}),
    ],
)
def test_by_default_momentum_waits_in_rounds(strategy: Strategy, make: Any, expected: set[int], tmp_path: Path) -> None:
    """There what going on costs is more than it gains (docs/local-steps.md)."""
    run = simulated(partial(trained, make=make), strategy, tmp_path)
    assert {one.worker for one in run.workers if one.went_on} == expected


def test_staleness_is_counted_from_the_version_of_the_first_step(tmp_path: Path) -> None:
    """In a round of all, an answer that is taken late is of the version before."""
    waits, goes_on = (simulated(counting, ps.local_sgd(3, overlap=way), tmp_path) for way in (False, True))
    assert waits.staleness.max == 0
    assert goes_on.staleness.max == 1
    assert adopted(waits) == [0] * len(adopted(waits))


def test_what_is_not_finite_does_not_stay_in_a_worker_that_went_on(tmp_path: Path) -> None:
    def poisoned(worker: ps.Worker) -> None:
        chancy(worker, poison=(1, 4))

    run = simulated(poisoned, ps.local_sgd(3, overlap=True), tmp_path)
    assert run.discarded == {"not finite": 1}
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (
            {"every": answers.Steps(1), "send": answers.Gradient(), "outer": answers.UserOptimizer()},
            "for send=Parameters",
        ),
        (
            {"gather": answers.Round(2), "release": answers.AfterFold(cancel_late=True), "admit": answers.Fresh(0)},
            "no round",
        ),
    ],
)
def test_answers_that_do_not_go_with_going_on_are_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ps.StrategyError, match=why):
        replace(ps.async_local_sgd(3, overlap=True), **wrong)
    with pytest.raises(ps.StrategyError, match="adopt=Rebase"):
        replace(ps.local_sgd(3), adopt=answers.Replace(ahead=1))


def test_clients_that_begin_with_the_version_are_refused_with_overlap() -> None:
    def train(worker: ps.Worker) -> None:
        model = nn.Linear(1, 1)
        worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), ps.Clients([1.0], [[0]], per_round=1))

    with pytest.raises(ps.ConfigurationError, match="leave overlap out"):
        ps.run(train, ps.fedavg(overlap=True), workers=2, engine=ps.Simulated("uniform"))


def site(worker: ps.Worker) -> None:
    """It looks at its model between its last step and the exchange, and goes by what it sees."""
    torch.manual_seed(worker.rank)
    model = nn.Linear(3, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), None)
    inputs, wanted = torch.randn(20, 3), torch.randn(20, 1)
    for _ in range(8):
        for _ in range(3):
            descend(optimizer, (model(inputs) - wanted).pow(2).mean())
        with torch.no_grad():
            loss = float((model(inputs) - wanted).pow(2).mean())
        optimizer.param_groups[0]["lr"] = 0.05 * min(1.0, loss)
        worker.contribute(samples=20)


@pytest.mark.few(2)
@pytest.mark.parametrize("latency_s", [0.01, 0.022, 0.028, 0.032])
def test_a_replay_takes_an_answer_where_the_loop_saw_it(latency_s: float, tmp_path: Path) -> None:
    cluster = Cluster((Group(2, Constant(0.02), Link(latency_s)),))
    strategy = ps.fedbuff(1, overlap=True)
    run = ps.run(site, strategy, workers=2, engine=ps.Simulated(cluster), runs=tmp_path)
    assert_replays(run, site)


def test_after_a_nan_a_worker_keeps_what_it_did_since(tmp_path: Path) -> None:
    """Only the batches of the contribution that held it are missing."""
    run = simulated(partial(counting, spoilt=(1, 8)), ps.async_local_sgd(6, overlap=True), tmp_path)
    assert run.discarded == {"not finite": 1}
    assert int((rows(run) == 0).sum()) == 6 * BATCH
    assert set(rows(run).tolist()) == {-0.0, 1.0}


def test_workers_in_step_wait_until_local_steps_begin(tmp_path: Path) -> None:
    run = simulated(counting, ps.post_local_sgd(3, after=4, overlap=True), tmp_path)
    taken = adopted(run)
    assert not any(taken[: 5 * WORKERS])
    assert all(taken[5 * WORKERS : -WORKERS])


@pytest.mark.thorough
def test_how_far_the_data_is_never_falls_after_a_death() -> None:
    seen: list[float] = []

    def watching(worker: ps.Worker) -> None:
        model = nn.Linear(1, 1)
        loader = DataLoader(TensorDataset(torch.ones(180, 1)), batch_size=1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.0)
        model, optimizer, loader = worker.prepare(model, optimizer, loader)
        for _ in range(2):
            for (inputs,) in loader:
                if worker.rank == 0:
                    seen.append(worker.epoch)
                descend(optimizer, model(inputs).sum())

    cluster = Cluster((Group(2, Constant(0.02), Link(0.05)),), faults=(Crash(worker=1, at_s=0.7),))
    ps.run(watching, ps.local_sgd(4), workers=2, engine=ps.Simulated(cluster))
    assert seen == sorted(seen)
    assert 1.8 < seen[-1] < 2.0
