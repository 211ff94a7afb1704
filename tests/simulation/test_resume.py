"""Checkpoints and resumes of simulated runs: the code of real runs, in virtual time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, LogNormal, Restart
from plesio.core.events import Pushed
from plesio.protocol.journal import read_journal
from plesio.server.checkpoints import latest
from plesio.strategy import Strategy
from plesio.strategy.answers import TopK
from support.long_forms import in_turn
from support.loops import descend
from support.replayed import Augmented, build
from support.runs import assert_replays, by_name, in_two_parts, same

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
CLUSTER = Cluster((Group(3, LogNormal(0.1, 0.3)), Group(1, LogNormal(0.3, 0.3))))
FAULTS = Cluster((Group(4, Constant(0.1)),), faults=(Crash(worker=1, at_s=0.55), Restart(worker=1, at_s=0.8)))


def train(worker: Any, kind: str = "sgd") -> None:
    """Dropout, noise on the data, and a schedule that catches up when it is resumed."""
    model = build()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if kind == "adam":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Augmented(), batch_size=6, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.8)
    for _ in range(worker.steps_before):
        schedule.step()
    for _ in range(3):
        for inputs, labels in loader:
            descend(optimizer, cross_entropy(model(inputs), labels))
            schedule.step()


def adam(worker: Any) -> None:
    train(worker, "adam")


def simulated(strategy: Strategy, function: Any = train, cluster: Cluster = CLUSTER, **options: Any) -> ps.Run:
    return ps.run(function, strategy, workers=4, engine=ps.Simulated(cluster), seed=2, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [10, 17])
@pytest.mark.parametrize("function", [train, adam])
def test_in_rounds_a_resumed_run_gives_the_same_weights(function: Any, steps: int, tmp_path: Path) -> None:
    run = partial(simulated, ps.sync_sgd(), function)
    whole, first, second = in_two_parts(run, tmp_path, ps.Until(steps=steps), ps.Checkpoint())
    assert first.ended == f"{steps} steps were up"
    assert not same(first, whole)
    assert same(second, whole)
    assert f"resumed at version {first.version}" in second.incidents[0].what


HOLDING = [
    ps.local_sgd(3),
    ps.diloco(3, codec="int4"),
    ps.slowmo(3),
    ps.local_sgd(3, codec=TopK(0.1)),
    ps.sync_sgd(codec="int4"),
    ps.sync_sgd(codec=TopK(0.1)),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "seconds"), in_turn(HOLDING, [1.3, 2.1]), ids=by_name)
def test_what_a_worker_holds_comes_back(strategy: Strategy, seconds: float, tmp_path: Path) -> None:
    """The inner AdamW, what the codecs left out, what was shown: weights equal those of the uninterrupted run, although it
    was stopped between two exchanges."""
    whole, _, second = in_two_parts(partial(simulated, strategy, adam), tmp_path, ps.Until(seconds=seconds))
    assert same(second, whole)
    assert_replays(second, adam)


@pytest.mark.thorough
def test_what_a_dead_worker_held_is_reported_lost(tmp_path: Path) -> None:
    dies = Cluster((Group(4, Constant(0.1)),), faults=(Crash(worker=1, at_s=0.55),))
    first = simulated(
        ps.local_sgd(2), adam, dies, runs=tmp_path, checkpoint=ps.Checkpoint(), until=ps.Until(seconds=0.9)
    )
    assert "the state of its optimizer is lost" in first.incidents[0].what
    held = [one.name for one in sorted(latest(first.folder).path.glob("worker-*"))]
    assert held == ["worker-0.pt", "worker-2.pt", "worker-3.pt"]
    second = simulated(ps.local_sgd(2), adam, runs=tmp_path, resume=first.folder)
    lost = "the checkpoint does not hold the state of the optimizer of worker 1, which begins anew"
    assert lost in [one.what for one in second.incidents]
    assert_replays(second, adam)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    [
        ps.first_of(3),
        ps.sync_sgd(),
        ps.async_sgd(),
        ps.bounded_staleness(2),
        ps.buffered(2),
        ps.elastic_averaging(2),
        ps.async_local_sgd(2, codec="int8"),
        ps.async_sgd(codec="int4"),
        ps.first_of(3, codec="int8"),
    ],
    ids=by_name,
)
def test_a_replay_of_a_resumed_run_is_identical(strategy: Strategy, tmp_path: Path) -> None:
    kept = ps.Checkpoint(every_s=0.3)
    first = simulated(strategy, runs=tmp_path / "a", checkpoint=kept, until=ps.Until(seconds=0.9), cluster=FAULTS)
    second = simulated(strategy, runs=tmp_path / "b", resume=first.folder, checkpoint=kept, cluster=FAULTS)
    assert second.version > first.version
    assert_replays(second, train)


def test_until_counts_work_before_the_resume(tmp_path: Path) -> None:
    first = simulated(ps.async_sgd(), runs=tmp_path, checkpoint=ps.Checkpoint(), until=ps.Until(steps=20))
    second = simulated(ps.async_sgd(), runs=tmp_path, resume=first.folder, until=ps.Until(steps=30))
    assert second.ended == "30 steps were up"
    assert second.steps == 30 - latest(first.folder or tmp_path).manifest.steps


def test_checkpoints_are_written_in_virtual_time(tmp_path: Path) -> None:
    """One every 0.24 s and one at the end, with a version every 0.1 s."""
    even = Cluster((Group(4, Constant(0.1)),))
    run = simulated(
        ps.sync_sgd(), cluster=even, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=0.24, keep=100),
        until=ps.Until(seconds=0.95),
    )  # fmt: skip
    kept = sorted(int(one.name.removeprefix("version-")) for one in (run.folder / "checkpoints").iterdir())
    assert kept == [2, 4, 7, 9]
    assert latest(run.folder).manifest.version == run.version


def test_on_nonfinite_raise_ends_a_simulated_run_when_the_contribution_comes(tmp_path: Path) -> None:
    def poisoned(worker: Any) -> None:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Augmented(), batch_size=6))
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            (loss * (float("nan") if (worker.rank, step) == (1, 1) else 1.0)).backward()
            optimizer.step()

    with pytest.raises(ps.NonFiniteError, match=r"contribution 2 of worker 1 held .* on_nonfinite='raise'"):
        simulated(ps.async_sgd(), poisoned, on_nonfinite="raise", runs=tmp_path)
    *_, last = read_journal(next(tmp_path.iterdir())).decisions()
    assert isinstance(last.event, Pushed)
    assert (last.event.worker, last.event.number, last.event.finite) == (1, 2, False)
    with pytest.warns(RuntimeWarning, match="worker 1: a contribution held a NaN"):
        run = simulated(ps.async_sgd(), poisoned)
    assert run.discarded == {"not finite": 1}
    assert [one.what for one in run.incidents] == ["contribution 2 of worker 1 held a NaN or an infinity: discarded"]


def test_an_optimizer_state_that_cannot_be_saved_is_warned_of_once(tmp_path: Path) -> None:
    def odd(worker: Any) -> None:
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer.state["hook"] = {"call": lambda: None}
        model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Augmented(), batch_size=6))
        for inputs, labels in loader:
            descend(optimizer, cross_entropy(model(inputs), labels))

    with pytest.warns(RuntimeWarning, match="checkpoints cannot hold the state of SGD, and a resumed run") as warned:
        first = simulated(ps.local_sgd(2), odd, runs=tmp_path, checkpoint=ps.Checkpoint())
    assert len([one for one in warned if "cannot hold" in str(one.message)]) == 4  # each worker
    assert not list(latest(first.folder).path.glob("worker-*"))
