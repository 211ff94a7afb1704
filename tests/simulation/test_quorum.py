"""`quorum` in whole runs: late work is kept, a grace lets others in, and both replay to the same bits."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import plesio as ps
from plesio.cluster import Cluster, Constant, Group
from plesio.core.events import Pushed, Ticked
from plesio.launch.simulated.whatif import what_if
from plesio.observe.times import measured
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from support import loops
from support.replayed import chancy
from support.runs import assert_replays

ROWS, EPOCHS = 240, 2


def last_takes(step_s: float) -> ps.Simulated:
    """Three workers whose steps take 0.1 s, and one whose take `step_s`."""
    return ps.Simulated(Cluster((Group(3, Constant(0.1)), Group(1, Constant(step_s)))))


def run_of(strategy: Strategy, folder: Path, engine: ps.Simulated) -> ps.Run:
    train = partial(loops.visit, folder=str(folder), rows=ROWS, epochs=EPOCHS)
    return ps.run(train, strategy, workers=4, engine=engine, runs=folder)


def stalest(run: ps.Run) -> list[int]:
    """Of the contributions of each of four workers that were folded, the most versions one was late."""
    late = [0] * 4
    for fold in read_journal(run.folder).folds():
        for one in fold.members:
            late[one.worker] = max(late[one.worker], one.staleness)
    return late


def test_late_work_is_folded_and_replays(tmp_path: Path) -> None:
    """A worker ten times slower than the others: each row is in each epoch once, though nobody waits for it."""
    run = run_of(ps.quorum(3, within=20), tmp_path, ps.Simulated("one-straggler"))
    lines = [line for one in range(4) for line in (tmp_path / f"{one}.txt").read_text().splitlines()]
    assert Counter(int(row) for line in lines for row in line.split()[1:]) == dict.fromkeys(range(ROWS), EPOCHS)
    assert (run.discarded, run.batches_unvisited, run.samples) == ({}, 0, ROWS * EPOCHS)
    assert run.workers[3].folded == run.workers[3].steps > 0
    assert stalest(run)[3] > 1
    ticks = [one for one in read_journal(run.folder).decisions() if isinstance(one.event, Ticked)]
    assert not ticks, "no tick made a version"
    train = partial(loops.visit, folder=str(tmp_path), rows=ROWS, epochs=EPOCHS)
    assert_replays(run, train)


@pytest.mark.thorough
def test_a_grace_lets_a_slightly_late_worker_into_the_round(tmp_path: Path) -> None:
    strict, lenient = (
        run_of(strategy, tmp_path, last_takes(0.11)) for strategy in (ps.quorum(3), ps.quorum(3, grace_s=0.05))
    )
    assert stalest(strict)[3] > 0
    assert stalest(lenient) == [0] * 4
    assert lenient.version == ROWS * EPOCHS / 4 / 4
    assert lenient.wall_s == pytest.approx(0.11 * lenient.version), "when all have come the grace is over"


def test_a_grace_ends_at_its_time(tmp_path: Path) -> None:
    run = run_of(ps.quorum(3, grace_s=0.05), tmp_path, last_takes(0.4))
    assert stalest(run)[3] > 0
    came_s, ended = 0.0, 0
    for one in read_journal(run.folder).decisions():
        if isinstance(one.event, Ticked):
            ended += 1
            assert one.time_s == pytest.approx(came_s + 0.05)
            assert one.folds, "of ticks only those that made a version are kept"
        elif isinstance(one.event, Pushed) and one.event.worker < 3:
            came_s = one.time_s
    assert ended > 10
    assert_replays(run, partial(loops.visit, folder=str(tmp_path), rows=ROWS, epochs=EPOCHS))


def test_whatif_knows_a_grace(tmp_path: Path) -> None:
    """From a barrier's times: the slow worker costs a round its grace, and not its own step."""
    run = measured(run_of(ps.sync_sgd(), tmp_path, last_takes(0.4)).summary)
    sync, strict, lenient = what_if(run, [ps.sync_sgd(), ps.quorum(3), ps.quorum(3, grace_s=0.05)])
    assert strict.time_s < lenient.time_s < sync.time_s


def test_a_grace_of_real_workers_replays(tmp_path: Path) -> None:
    """Worker 0 is so slow that the others' rounds end with their grace."""
    slow = {"pace": ps.Pace(0.002), "faults": [ps.Slow(worker=0, factor=10)]}
    train = partial(chancy, epochs=2)
    run = ps.run(train, ps.quorum(2, grace_s=0.005), workers=3, runs=tmp_path, timeout_s=60, **slow)
    assert any(isinstance(one.event, Ticked) for one in read_journal(run.folder).decisions())
    assert_replays(run, train)
