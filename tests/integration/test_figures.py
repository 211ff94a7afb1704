"""The figures of whole runs against known values: counted steps, bytes, advice, samples after a resume."""

from __future__ import annotations

import functools
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Join, Link, Restart
from plesio.observe.times import measured
from plesio.strategy import Strategy

TEN_AND_TEN = Cluster((Group(10, Constant(0.1)), Group(10, Constant(0.105))))
TEN_STEPS_EACH_S = 10 / 0.1 + 10 / 0.105
STRAGGLER = Cluster((Group(3, Constant(0.02)), Group(1, Constant(0.1))))


def own(worker: ps.Worker, steps: int | None = 10) -> None:
    """So many steps of the worker's own, or without end; it takes no data from anywhere."""
    model: nn.Module = nn.Linear(2, 1)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), None)
    for _ in count() if steps is None else range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def half_frozen(worker: ps.Worker) -> None:
    """8 trained bytes, 16 of buffers and 4,004 frozen."""
    frozen = nn.Linear(1_000, 1).requires_grad_(False)
    model: nn.Module = nn.Sequential(frozen, nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)  # type: ignore[index]
    model, optimizer, _ = worker.prepare(model, optimizer, None)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 1_000)).square().sum().backward()
        optimizer.step()


def epochs(worker: ps.Worker) -> None:
    model: nn.Module = nn.Linear(2, 1)
    data = DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=4)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
    for _ in range(6):
        for (inputs,) in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()


def simulated(strategy: Strategy, cluster: Cluster, steps: int | None = 10, until: ps.Until | None = None) -> ps.Run:
    train = functools.partial(own, steps=steps)
    return ps.run(train, strategy, workers=cluster.workers, engine=ps.Simulated(cluster), until=until)


def useful(run: ps.Run) -> int:
    return run.steps - sum(one.in_vain for one in run.workers)


# Of ideal


def test_half_of_the_work_cancelled_is_an_ideal_share_of_one_half() -> None:
    """The slower ten are cancelled at 0.1 s each time; their full step time is unknown."""
    run = simulated(ps.first_of(10), TEN_AND_TEN)
    assert run.discarded == {"cancelled": 100}
    assert run.ideal_share == pytest.approx(0.5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", [ps.first_of(10, cancel_late=False), ps.ringmaster(2), ps.rennala(2)], ids=lambda one: one.name
)
def test_stale_contributions_are_no_useful_work(strategy: Strategy) -> None:
    run = simulated(strategy, TEN_AND_TEN, until=ps.Until(seconds=0.9))
    assert run.discarded["stale"] >= 80
    assert useful(run) == run.folded
    assert run.ideal_share == pytest.approx(run.folded / (0.9 * TEN_STEPS_EACH_S))


def test_contributions_crossing_their_cancellation_are_no_useful_work() -> None:
    link = Link(latency_s=0.03)
    cluster = Cluster((Group(2, Constant(0.1), link), Group(2, Constant(0.11), link)))
    run = simulated(ps.first_of(2), cluster, until=ps.Until(seconds=2.0))
    assert run.steps > run.folded
    assert useful(run) == run.folded


def test_finished_workers_do_not_lower_the_ideal_share() -> None:
    """40 steps each: three workers finish at 0.8 s of 4, and nobody waits."""
    run = simulated(ps.async_sgd("plain"), STRAGGLER, steps=40)
    assert (run.wall_s, run.waiting_share) == (pytest.approx(4.0), 0.0)
    assert run.ideal_share == pytest.approx(1.0)
    waiting = simulated(ps.sync_sgd(), STRAGGLER, steps=40)
    assert waiting.ideal_share == pytest.approx(160 / (4.0 * (3 / 0.02 + 1 / 0.1)))


@pytest.mark.parametrize(
    ("faults", "steps"),
    [((Join(worker=1, at_s=5.0),), 15), ((Crash(worker=1, at_s=1.05), Restart(worker=1, at_s=9.0)), 12)],
    ids=["came late", "came back"],
)
def test_absent_workers_do_not_lower_the_ideal_share(faults: tuple[Crash | Join | Restart, ...], steps: int) -> None:
    cluster = Cluster((Group(2, Constant(1.0)),), faults=faults)
    run = simulated(ps.async_sgd("plain"), cluster, steps=None, until=ps.Until(seconds=10.05))
    assert run.steps == steps
    assert run.ideal_share == pytest.approx(1.0, abs=0.02)


# Waiting


@pytest.mark.parametrize(
    ("strategy", "waited", "end_s"),
    [(ps.sync_sgd(), 25 * 3 * 3, 100), (ps.sync_sgd(), 3 * 0.5, 1.5), (ps.local_sgd(every=30), 3 * 70, 100)],
    ids=["sync_sgd", "sync_sgd, in the first round", "local_sgd"],
)
def test_waits_and_steps_cut_by_the_end_count_until_then(strategy: Strategy, waited: float, end_s: float) -> None:
    """Three workers step in a second and wait for the fourth; local_sgd makes no fold at all."""
    cluster = Cluster((Group(3, Constant(1.0)), Group(1, Constant(4.0))))
    run = simulated(strategy, cluster, steps=None, until=ps.Until(seconds=end_s))
    assert run.waiting_share == pytest.approx(waited / (4 * end_s))
    assert run.workers[3].compute_s == pytest.approx(end_s)
    assert sum(one.end_s - one.start_s for one in run.timeline if one.kind == "wait") == pytest.approx(waited)
    assert all(one.steps for one in run.timeline if one.kind == "compute"), "nothing was called off"


# Advice


def test_no_advice_when_each_worker_has_its_own_steps() -> None:
    """The slow worker's steps take as long under every strategy. Endless loops get advice."""
    assert simulated(ps.sync_sgd(), STRAGGLER, steps=40).advice == ""
    endless = simulated(ps.sync_sgd(), STRAGGLER, steps=None, until=ps.Until(seconds=4.0))
    assert "async_sgd would have taken" in endless.advice
    train = functools.partial(own, steps=None)
    shards = ps.run(
        train, "sync_sgd", workers=4, engine=ps.Simulated(STRAGGLER), until=ps.Until(seconds=4.0), data="shards"
    )
    assert shards.advice == ""


# Bytes


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.hogwild()], ids=lambda one: one.name)
@pytest.mark.parametrize(
    "engine", ["local", ps.Simulated(Cluster((Group(2, Constant(0.1)),)))], ids=["real", "simulated"]
)
def test_frozen_parameters_are_not_sent(strategy: Strategy, engine: ps.Simulated | str) -> None:
    run = ps.run(half_frozen, strategy, workers=2, engine=engine)
    assert run.steps == 10
    assert run.bytes == 2 * 10 * (8 + 16)


@pytest.mark.parametrize(
    "engine",
    ["local", ps.Simulated(Cluster((Group(1, Constant(0.2)), Group(2, Constant(0.02)))))],
    ids=["real", "simulated"],
)
def test_cancelled_steps_cost_only_the_parameters_bytes(engine: ps.Simulated | str) -> None:
    """12 bytes up per contribution, 12 down per answer or cancellation."""
    paces = {} if isinstance(engine, ps.Simulated) else {"pace": ps.Pace(0.02), "faults": [ps.Slow(0, 10)]}
    run = ps.run(own, ps.first_of(2), workers=3, engine=engine, **paces)
    called_off = run.discarded["cancelled"]
    assert called_off > 5
    assert run.bytes == 12 * (run.steps + run.folded + called_off)
    if run.steps == run.folded:  # none crossed its cancellation
        assert measured(run.summary).nbytes == 12


# The times of evaluations


@pytest.mark.thorough
def test_evaluations_are_not_earlier_than_their_version() -> None:
    """The step under way at the stop is folded when it is done."""
    train = functools.partial(own, steps=None)
    options = {"workers": 2, "pace": ps.Pace(1.0), "evaluate": weight, "evaluate_every_s": 0.2}
    run = ps.run(train, ps.sync_sgd(), until=ps.Until(seconds=1.3), **options)
    assert run.history[-1].version == run.version
    assert all(one.version <= one.time_s for one in run.history)
    times = [one.time_s for one in run.history]
    assert times == sorted(times)


# Samples of a resumed run


@pytest.mark.thorough
def test_samples_continue_after_a_resume(tmp_path: Path) -> None:
    options = {"workers": 2, "pace": ps.Pace(0.01), "evaluate": weight, "evaluate_every_s": 0.1}
    first = ps.run(
        epochs, ps.sync_sgd(), runs=tmp_path / "a", checkpoint=ps.Checkpoint(), until=ps.Until(samples=100), **options
    )
    second = ps.run(epochs, ps.sync_sgd(), runs=tmp_path / "b", resume=first.folder, **options)
    assert first.ended != "finished"
    points = [(one.version, one.samples) for one in second.history]
    assert points[0][0] > 0
    assert all(8 * version <= samples < 8 * version + 8 for version, samples in points)
    assert points[-1] == (48, 6 * 64)
    assert second.samples < 6 * 64


def weight(model: nn.Module) -> dict[str, float]:
    return {"weight": float(next(model.parameters()).sum())}
