"""Tables in runs of real processes and in virtual time: deaths, cancelled steps, NaN; each run against its twin, and replayed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Link, LogNormal, Restart
from plesio.core.events import Discard, Joined, Pushed, RowsWanted, Verdict
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from support.long_forms import but_slow, in_turn
from support.row_twin import ADAGRAD, ENDLESS, Life, assert_rows, passes, train, twin_of
from support.runs import assert_replays, by_name

FAR_AND_NEAR = (Group(1, LogNormal(0.1, 0.3), Link(0.3)), Group(2, LogNormal(0.1, 0.3)))
REAL = [ps.async_sgd(), ps.sync_sgd(), ps.first_of(2), ps.buffered(2), ps.local_sgd(3, overlap=True)]
WAYS = ["looks", "twice", "accumulates"]
RECIPES = [
    ps.async_sgd(),
    ps.sync_sgd(),
    ps.sync_sgd(rows="each"),
    ps.first_of(2),
    ps.quorum(2),
    ps.buffered(2),
    ps.buffered(2, rows="with"),
    ps.local_sgd(3),
]


LIFE: Life = {"admit": ps.Seen(2), "expire": ps.Unused(versions=5)}


def assert_as_the_twin(run: ps.Run, strategy: Strategy, loop: Any = train, way: str = "", life: Life = ENDLESS) -> Path:
    """Nothing is lost, and nothing doubled; neither when it is computed again. The run's folder."""
    assert_rows(run, twin_of(run.folder, strategy, ADAGRAD, way, life))
    assert_replays(run, loop)
    return run.folder


def discarded(folder: Path, verdict: Verdict) -> list[Discard]:
    effects = [effect for one in read_journal(folder).decisions() for effect in one.effects]
    return [one for one in effects if isinstance(one, Discard) and one.verdict is verdict]


def simulated(strategy: Strategy, folder: Path, loop: Any = train, faults: Any = ()) -> ps.Run:
    cluster = Cluster(FAR_AND_NEAR, faults=tuple(faults))
    return ps.run(loop, strategy, workers=3, engine=ps.Simulated(cluster), runs=folder)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy", but_slow(REAL, {"async_sgd", "sync_sgd", "local_sgd(every 3 steps, overlap=True)"}), ids=by_name
)
def test_real_processes_have_the_rows_of_the_twin_and_replay(strategy: Strategy, tmp_path: Path) -> None:
    run = ps.run(train, strategy, workers=3, runs=tmp_path, timeout_s=60, faults=[ps.Slow(worker=0, factor=4)])
    assert_as_the_twin(run, strategy)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    but_slow(
        [ps.async_sgd(), ps.sync_sgd(), ps.buffered(2), ps.local_sgd(3)], {"async_sgd", "local_sgd(every 3 steps)"}
    ),
    ids=by_name,
)
def test_a_table_of_ids_that_die_stays_small(strategy: Strategy, tmp_path: Path) -> None:
    life: Life = {"admit": ps.Seen(2), "expire": ps.Unused(versions=4)}
    loop = partial(train, life=life, steps=40, way="drifts")
    run = simulated(strategy, tmp_path, loop)
    assert_as_the_twin(run, strategy, loop, "drifts", life)
    ids = {int(key) for rank in range(3) for step in range(40) for key in passes(rank, step, "drifts")[0]}
    assert len(ids) > 300
    assert run.tables["ids"].rows + len(run.tables["ids"].get_extra_state()["counts"]) < len(ids) / 2


@pytest.mark.parametrize("strategy", but_slow([ps.async_sgd(), ps.sync_sgd()], {"async_sgd"}), ids=by_name)
def test_rows_that_expire_while_real_processes_have_them(strategy: Strategy, tmp_path: Path) -> None:
    slow = [ps.Slow(worker=0, factor=4)]
    loop = partial(train, life=LIFE)
    run = ps.run(loop, strategy, workers=3, runs=tmp_path, timeout_s=60, faults=slow)
    assert_as_the_twin(run, strategy, loop, life=LIFE)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("strategy", "way"), in_turn([ps.async_sgd(), ps.sync_sgd(), ps.local_sgd(3)], WAYS), ids=by_name
)
def test_however_a_step_uses_its_rows(strategy: Strategy, way: str, tmp_path: Path) -> None:
    """A look without gradients, in between, too; no row is born by it."""
    loop = partial(train, way=way)
    run = simulated(strategy, tmp_path, loop)
    assert_as_the_twin(run, strategy, loop, way)
    keys = run.tables["ids"].get_extra_state()["keys"]
    assert keys.max() < 1000


@pytest.mark.parametrize("way", but_slow(WAYS, {"accumulates"}))
def test_however_a_step_of_a_real_process_uses_its_rows(way: str, tmp_path: Path) -> None:
    loop = partial(train, way=way)
    run = ps.run(loop, ps.async_sgd(), workers=2, runs=tmp_path, timeout_s=60)
    assert_as_the_twin(run, ps.async_sgd(), loop, way)


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "way"), in_turn(RECIPES, ["ahead", "twice ahead"]), ids=by_name)
def test_rows_that_were_asked_for_ahead(strategy: Strategy, way: str, tmp_path: Path) -> None:
    """Where they step with a round, they are served after it; also where workers die and come back."""
    loop = partial(train, way=way)
    faults = Crash(worker=1, at_s=0.55), Restart(worker=1, at_s=0.8)
    folder = assert_as_the_twin(simulated(strategy, tmp_path, loop, faults), strategy, loop, way)
    wanted = [one.event for one in read_journal(folder).decisions()]
    assert any(isinstance(one, RowsWanted) and one.ahead for one in wanted) == (not strategy.send.stepped)


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", but_slow(REAL[:3], {"async_sgd", "first_of(2)"}), ids=by_name)
def test_rows_that_a_real_process_asks_for_ahead(strategy: Strategy, tmp_path: Path) -> None:
    loop = partial(train, way="twice ahead")
    run = ps.run(loop, strategy, workers=3, runs=tmp_path, timeout_s=60)
    assert_as_the_twin(run, strategy, loop, "twice ahead")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "strategy",
    [
        ps.local_sgd(3, overlap=True),
        ps.diloco(2, overlap=True),
        ps.diloco(4, fragments=2),
        ps.diloco(4, fragments=2, overlap=True),
        ps.async_local_sgd(2, overlap=True),
    ],
    ids=by_name,
)
def test_workers_that_go_on_pull_for_the_next_contribution_meanwhile(strategy: Strategy, tmp_path: Path) -> None:
    assert_as_the_twin(simulated(strategy, tmp_path), strategy)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "seed"), in_turn([*RECIPES, ps.local_sgd(3, overlap=True)], range(3)), ids=by_name
)
def test_workers_that_die_and_come_back(strategy: Strategy, seed: int, tmp_path: Path) -> None:
    """With rows pulled, with a contribution that waits or travels: whatever counted is in the rows once."""
    rng = np.random.default_rng(seed)
    faults = []
    for worker in (1, 2):
        at_s = float(rng.uniform(0.1, 1.0))
        faults += [Crash(worker=worker, at_s=at_s), Restart(worker=worker, at_s=at_s + float(rng.uniform(0.01, 0.4)))]
    life = LIFE if seed == 2 else ENDLESS
    loop = partial(train, life=life)
    folder = assert_as_the_twin(simulated(strategy, tmp_path, loop, faults), strategy, loop, life=life)
    told = [one.event for one in read_journal(folder).decisions()]
    assert {one.worker for one in told if isinstance(one, Joined) and one.incarnation == 2} == {1, 2}


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.sync_sgd(rows="each"), ps.async_sgd()], ids=by_name)
def test_what_had_come_of_a_dead_worker_counts(strategy: Strategy, tmp_path: Path) -> None:
    """It waits in a round for the slow one, with its rows, while its worker is dead, or back already."""
    groups = Group(1, Constant(1.0)), Group(2, Constant(0.1))
    faults = Crash(worker=1, at_s=0.5), Restart(worker=1, at_s=0.6)
    run = ps.run(train, strategy, workers=3, engine=ps.Simulated(Cluster(groups, faults=faults)), runs=tmp_path)
    assert_as_the_twin(run, strategy)


@pytest.mark.parametrize("strategy", but_slow(REAL[:3], {"async_sgd", "first_of(2)"}), ids=by_name)
def test_a_process_killed_while_its_rows_are_out(strategy: Strategy, tmp_path: Path) -> None:
    loop = partial(train, dies=tmp_path / "died", steps=30)
    run = ps.run(loop, strategy, workers=3, runs=tmp_path, timeout_s=60)
    assert run.workers[1].left == "died"
    folder = assert_as_the_twin(run, strategy, loop)
    told = [one.event for one in read_journal(folder).decisions()]
    of_it = [one for one in told if getattr(one, "worker", 0) == 1]
    wanted = [one.number for one in of_it if isinstance(one, RowsWanted)]
    pushed = [one.number for one in of_it if isinstance(one, Pushed)]
    assert max(wanted) > max(pushed, default=0), "steps that were called off have numbers, too"


def test_cancelled_steps_move_no_row(tmp_path: Path) -> None:
    folder = assert_as_the_twin(simulated(ps.first_of(2), tmp_path), ps.first_of(2))
    assert discarded(folder, Verdict.CANCELLED)


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", RECIPES, ids=by_name)
def test_a_nan_among_the_gradients_of_rows_discards_the_whole_contribution(strategy: Strategy, tmp_path: Path) -> None:
    loop = partial(train, poison=(1, 3))
    with pytest.warns(RuntimeWarning):
        run = simulated(strategy, tmp_path, loop)
    folder = assert_as_the_twin(run, strategy, loop)
    assert run.tables["ids"].get_extra_state()["values"].isfinite().all()
    if strategy.name != "first_of(2)":  # that step may have been called off
        assert len(discarded(folder, Verdict.NOT_FINITE)) == 1


def test_a_nan_that_only_rows_have(tmp_path: Path) -> None:
    """The dense part is finite: its gradient is not of the rows (see `row_twin.Net`)."""

    def loop(worker: Any) -> None:
        model = torch.nn.ModuleDict({"ids": ps.Table(2, ps.RowSGD(0.1)), "top": torch.nn.Linear(2, 1)})
        model, dense = worker.prepare(model, torch.optim.SGD(model["top"].parameters(), lr=0.1))
        for step in range(4):
            dense.zero_grad()
            rows = model["ids"](torch.tensor([step, 7]))
            loss = rows.square().sum() * (float("inf") if step == 2 else 1.0)
            (loss + model["top"](torch.ones(1, 2)).sum()).backward()
            dense.step()

    with pytest.warns(RuntimeWarning):
        run = ps.run(loop, ps.async_sgd(), workers=1, engine=ps.Simulated("uniform"), runs=tmp_path)
    assert sorted(run.tables["ids"].get_extra_state()["keys"].tolist()) == [0, 1, 3, 7]
    assert run.version == 3
