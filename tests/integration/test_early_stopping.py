"""`worker.stop`: one worker ends the run for all, and its reason is recorded."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Restart
from plesio.launch.job import Live
from plesio.server.checkpoints import FOLDER, latest
from support import loops
from support.long_forms import but_thorough

PATIENCE = "no better for 5 epochs"
WORDS = f"worker 1 stopped the run: {PATIENCE}"
STRATEGIES = [ps.sync_sgd(), ps.async_sgd(), ps.hogwild(), ps.allreduce("torch"), ps.local_sgd(every=2)]
SIMULATED = [*STRATEGIES, ps.first_of(2), ps.local_sgd(every=ps.Seconds(0.25))]


def patient(
    worker: Any, after: int = 6, who: int | None = 1, reason: Any = PATIENCE, leaves: bool = False, notes: str = ""
) -> None:
    """Trains without end; worker `who` (all of them: None) stops the run after so many steps. In `notes`: how each left."""
    model = loops.mlp()
    loader = DataLoader(TensorDataset(*loops.data()), batch_size=8, shuffle=True)
    model, optimizer, loader = worker.prepare(model, loops.sgd(model), loader)
    step = 0
    try:
        while True:
            for inputs, labels in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                step += 1
                if step == after and who in (None, worker.rank):
                    worker.stop(reason)
                    if leaves:
                        return
    finally:
        if notes:
            Path(notes, f"{worker.rank}.txt").write_text(f"{worker.stopped}")
        worker.stop("too late")


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", but_thorough(STRATEGIES, {"sync_sgd", "hogwild"}), ids=lambda one: one.name)
def test_one_worker_stops_the_run_and_its_reason_is_recorded(strategy: ps.Strategy, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    run = ps.run(
        partial(patient, notes=str(notes)), strategy, workers=3, pace=0.002, runs=tmp_path / "runs", timeout_s=30
    )
    assert run.ended == WORDS
    assert f"{strategy.name}: {WORDS} · {run.times} · version" in " ".join(str(run).split())
    assert {one.left for one in run.workers} == {"finished"}
    assert run.incidents == ()
    assert {path.read_text() for path in notes.iterdir()} == {"True"}
    assert len(list(notes.iterdir())) == 3
    assert max(one.steps for one in run.workers) >= 6
    assert run.state_dict
    assert json.loads((run.folder / "summary.json").read_text())["ended"] == WORDS
    assert f"ended: {WORDS}." in (run.folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("stops", "until", "ended"),
    [
        ({"leaves": True}, None, {WORDS}),
        ({"who": None}, None, {f"worker {worker} stopped the run: {PATIENCE}" for worker in range(2)}),
        ({"who": -1}, ps.Until(steps=20), {"20 steps were up"}),
    ],
    ids=["a worker returns right after it", "the first one gives the reason", "all after the end, ignored"],
)
def test_of_several_stops_the_first_counts(stops: dict[str, Any], until: Any, ended: set[str]) -> None:
    run = ps.run(partial(patient, **stops), ps.async_sgd(), workers=2, pace=0.002, until=until, timeout_s=30)
    assert run.ended in ended
    assert [one.left for one in run.workers] == ["finished"] * 2


@pytest.mark.thorough
def test_a_stop_writes_a_checkpoint(tmp_path: Path) -> None:
    kept = ps.Checkpoint(every_s=1000)
    run = ps.run(patient, ps.sync_sgd(), workers=2, runs=tmp_path, checkpoint=kept, pace=0.002, timeout_s=30)
    assert latest(run.folder / FOLDER).manifest.version >= 6


def chatty(worker: Any, logs: int, raises: bool) -> None:
    """Has much to tell before the one thing that counts, all at once."""
    model = loops.mlp()
    worker.prepare(model, loops.sgd(model), None)
    for _ in range(logs):
        worker._context.logged(1, {"loss": 1.0})
    if raises:
        raise ValueError("the disk is on fire")
    worker.stop(PATIENCE)


def hears_late(live: Live) -> None:
    """The engine is at something else until the run is over."""
    if live.time_s >= 0:
        time.sleep(0.2)


@pytest.mark.thorough
def test_a_workers_last_messages_are_read_before_the_run_ends() -> None:
    with pytest.warns(RuntimeWarning, match="nothing was trained"):
        run = ps.run(partial(chatty, logs=30, raises=False), ps.async_sgd(), workers=1, watch=hears_late, timeout_s=30)
    assert run.ended == f"worker 0 stopped the run: {PATIENCE}"
    assert len(run.logged) == 30
    with pytest.raises(ps.WorkerError, match="the disk is on fire"):
        ps.run(partial(chatty, logs=30, raises=True), ps.async_sgd(), workers=1, watch=hears_late, timeout_s=30)


# On simulated machines


def simulated(train: Any, strategy: ps.Strategy, cluster: Cluster | str = "one-straggler", **options: Any) -> ps.Run:
    workers = cluster.workers if isinstance(cluster, Cluster) else 3
    return ps.run(train, strategy, workers=workers, engine=ps.Simulated(cluster), **options)


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", SIMULATED, ids=lambda one: one.name)
def test_a_simulated_stop_is_reproducible(strategy: ps.Strategy, tmp_path: Path) -> None:
    first, second = (simulated(patient, strategy, runs=tmp_path) for _ in range(2))
    assert first.ended == WORDS
    assert first.version > 0
    assert first.summary == second.summary
    assert (first.folder / "journal.bin").read_bytes() == (second.folder / "journal.bin").read_bytes()


@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.local_sgd(every=4)], ids=lambda one: one.name)
def test_a_simulated_stop_takes_effect_at_its_virtual_time(strategy: ps.Strategy) -> None:
    """Also within local steps, which are computed ahead of their time."""
    run = simulated(patient, strategy, Cluster((Group(2, Constant(0.1)),)))
    assert run.wall_s == pytest.approx(0.6)
    assert run.ended == WORDS


@pytest.mark.parametrize(("dies_s", "wall_s"), [(0.55, 1.4), (0.65, 0.6)])
def test_a_worker_that_crashed_before_its_stop_does_not_stop_the_run(dies_s: float, wall_s: float) -> None:
    """It restarts, and asks then."""
    faults = (Crash(worker=1, at_s=dies_s), Restart(worker=1, at_s=0.8))
    run = simulated(patient, ps.local_sgd(every=4), Cluster((Group(2, Constant(0.1)),), faults=faults))
    assert run.wall_s == pytest.approx(wall_s)
    assert run.ended == WORDS


def test_the_earliest_stop_in_virtual_time_counts() -> None:
    cluster = Cluster((Group(1, Constant(0.3)), Group(1, Constant(0.1)), Group(1, Constant(0.2))))
    run = simulated(partial(patient, who=None), ps.async_sgd(), cluster)
    assert (run.ended, run.wall_s) == (WORDS, pytest.approx(0.6))


# The reason


@pytest.mark.parametrize(
    ("reason", "told"),
    [("", ""), (" two\nlines ", ": two lines"), ("[/b] of [bold]", ": [/b] of [bold]")],
)
def test_a_reason_is_shown_on_one_line(reason: str, told: str) -> None:
    run = simulated(partial(patient, reason=reason), ps.async_sgd())
    assert run.ended == f"worker 1 stopped the run{told}"
    assert run.ended in " ".join(str(run).split())


def hasty(worker: Any) -> None:
    worker.stop("no data")


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (hasty, r"worker\.stop before prepare: "),
        (partial(patient, reason=0.3), r"worker\.stop\(float\): the reason is text"),
        (partial(patient, reason=None), r"worker\.stop\(NoneType\): the reason is text"),
        (partial(patient, reason=b"enough"), r"worker\.stop\(bytes\): the reason is text"),
    ],
)
def test_a_stop_that_cannot_be_is_refused(train: Any, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        simulated(train, ps.async_sgd())
