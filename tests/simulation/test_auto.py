"""`ps.auto` in virtual time: what it goes over to and when, what that is worth, and that it is the same again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Crash, Group, Link, LogNormal, Restart, Slow
from plesio.launch.simulated.lately import choose_in
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.memory.port import Memory
from plesio.strategy import Strategy
from support import loops

HALF_S = 300.0
STRAGGLER = Slow(worker=0, factor=10.0, at_s=HALF_S)
CHOICES = [ps.sync_sgd(), ps.bounded_staleness(4), ps.async_sgd()]
QUICK = ps.auto([ps.sync_sgd(), ps.async_sgd()], every_s=2.0, apart_s=4.0)


def cluster(*faults: Slow | Crash | Restart, step_s: float = 0.2) -> Cluster:
    return Cluster((Group(4, LogNormal(step_s, 0.05), Link(0.0005)),), Link(bytes_per_s=1e9), faults)


def timed(strategy: Strategy, *faults: Slow | Crash | Restart, seconds: float = 2 * HALF_S) -> VirtualRun:
    """A run of workers that compute nothing."""
    machines = cluster(*faults)
    workers = [TimedWorker(one, strategy) for one in machines.timetables(seed=1)]
    limits = {"seconds": seconds}
    run = VirtualRun(strategy, machines, workers, push_nbytes=1000, answer_nbytes=1000, limits=limits)
    run.program.begin(Memory(), 0.0)
    if strategy.chooses is not None:
        choose_in(run, strategy)
    run.run()
    return run


def train(worker: ps.Worker) -> None:
    model = loops.mlp()
    loader = DataLoader(TensorDataset(*loops.data(512)), batch_size=8, shuffle=True)
    model, optimizer, loader = worker.prepare(model, loops.momentum(model), loader)
    while True:
        for inputs, labels in loader:
            loops.descend(optimizer, cross_entropy(model(inputs), labels))


def switches(run: VirtualRun | ps.Run) -> list[str]:
    return [one.what for one in run.incidents if one.what.startswith("switched ")]


@pytest.mark.thorough
def test_when_a_worker_becomes_slow_it_is_nearly_as_fast_as_the_best_and_goes_over_once() -> None:
    run = timed(ps.auto(CHOICES), STRAGGLER)
    (what,) = switches(run)
    assert what.startswith("switched from sync_sgd to async_sgd at version")
    assert "times as many samples a second at the speeds of the last" in what
    (at_s,) = (one.time_s for one in run.incidents if one.what == what)
    assert HALF_S + 30 < at_s < HALF_S + 100  # two looks, and a step of the slow one
    assert max(timed(one, STRAGGLER).steps for one in CHOICES) <= 1.15 * run.steps


@pytest.mark.thorough
def test_where_workers_are_equal_it_stays_and_costs_nothing() -> None:
    run = timed(ps.auto(CHOICES))
    assert switches(run) == []
    assert run.steps == timed(ps.sync_sgd()).steps


@pytest.mark.thorough
def test_when_the_slow_worker_recovers_it_goes_back_to_lock_step() -> None:
    for_a_while = Slow(worker=0, factor=10.0, at_s=30.0, until_s=130.0)
    assert [what.split(" at ")[0] for what in switches(timed(ps.auto(CHOICES), for_a_while, seconds=250.0))] == [
        "switched from sync_sgd to async_sgd",
        "switched from async_sgd to sync_sgd",
    ]


@pytest.mark.thorough
def test_deaths_and_successors_do_not_keep_it_from_choosing() -> None:
    slow = Slow(worker=0, factor=10.0, at_s=30.0)
    faults = (slow, Crash(worker=1, at_s=50.0), Restart(worker=1, at_s=100.0))
    assert len(switches(timed(ps.auto(CHOICES), *faults, seconds=150.0))) == 1


def test_what_nobody_measured_is_left_out_and_told_unless_it_is_asked_for() -> None:
    choices = [ps.sync_sgd(), ps.local_sgd(16), ps.async_sgd()]
    careful, bold = (timed(ps.auto(choices, measured_only=one), seconds=1.0) for one in (True, False))
    assert careful.incidents[0].what == (
        "the run chooses from sync_sgd, async_sgd; not local_sgd(every 16 steps): it reached 98.9% of what sync_sgd "
        "reached with 4 workers (docs/convergence.md)"
    )
    assert bold.incidents[0].what == "the run chooses from sync_sgd, local_sgd(every 16 steps), async_sgd"


@pytest.mark.parametrize(
    ("strategies", "workers", "words"),
    [
        ([ps.sync_sgd(), ps.async_sgd()], 33, "nobody has measured it with 33 workers or more"),
        ([ps.sync_sgd(), ps.async_sgd("plain")], 4, "it reached 9.9% of what sync_sgd reached"),
        ([ps.local_sgd(16), ps.async_sgd()], 4, "not local_sgd"),
    ],
)
def test_with_nothing_to_choose_from_a_run_does_not_begin(strategies: list[Strategy], workers: int, words: str) -> None:
    with pytest.raises(ps.StrategyError, match="measured_only=False") as raised:
        ps.run(loops.endless, ps.auto(strategies), workers=workers)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        ([[]], "[]"),
        ([[ps.sync_sgd()]], "[sync_sgd]"),
        ([ps.sync_sgd()], "sync_sgd"),
        ([ps.sync_sgd(), ps.async_sgd()], "sync_sgd, async_sgd"),
        ([["sync_sgd", "async_sgd"]], "['sync_sgd', 'async_sgd']"),
        ([None], "None"),
    ],
)
def test_it_takes_a_list_of_strategies(wrong: list[Any], got: str) -> None:
    with pytest.raises(ps.StrategyError, match="give a list of at least two strategies, the tightest first") as raised:
        ps.auto(*wrong)
    assert str(raised.value).endswith(f"; got {got}")


def test_it_survives_a_file() -> None:
    assert Strategy.from_data(QUICK.name, QUICK.as_data()) == QUICK


@pytest.mark.thorough
def test_a_run_that_chooses_is_the_same_again_and_replays(tmp_path: Path) -> None:
    """With real gradients, deaths and data; the journal has the switches, and nobody chooses in a replay."""
    machines = cluster(Slow(worker=0, factor=10.0, at_s=4.0), Crash(worker=2, at_s=9.0), Restart(worker=2, at_s=13.0))

    def once(folder: str) -> ps.Run:
        until = ps.Until(seconds=16.0)
        return ps.run(
            train, QUICK, workers=4, engine=ps.Simulated(machines), runs=tmp_path / folder, until=until, seed=3
        )

    one, other = once("one"), once("other")
    assert [what.split(" at ")[0] for what in switches(one)] == ["switched from sync_sgd to async_sgd"]
    assert (one.folder / "journal.bin").read_bytes() == (other.folder / "journal.bin").read_bytes()
    assert one.advice == ""
    replayed = ps.replay(one.folder, train)
    assert all(torch.equal(value, replayed.state_dict[name]) for name, value in one.state_dict.items())
