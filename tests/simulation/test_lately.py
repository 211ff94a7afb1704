"""What is said of a run under way: forecasts from its last steps, against direct simulation, and the line of advice."""

from __future__ import annotations

import pytest

import plesio as ps
from plesio.cluster import Cluster, Group, Link, LogNormal, Slow
from plesio.launch.simulated.lately import advice_lately, speeds
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import TimedWorker
from plesio.observe.meter import LATELY_ALL, LATELY_LEAST, Meter, WorkerMeter
from plesio.protocol.launcher import Lately

STEP_S, WORKERS = 0.02, 4
HALF_S = 20.0
STRAGGLER = Slow(worker=0, factor=10.0, at_s=HALF_S)


def a_run(strategy: ps.Strategy, *faults: Slow, seconds: float = 2 * HALF_S) -> VirtualRun:
    cluster = Cluster((Group(WORKERS, LogNormal(STEP_S, 0.1), Link(0.0005)),), Link(bytes_per_s=1e8), faults)
    workers = [TimedWorker(one, strategy) for one in cluster.timetables(seed=1)]
    run = VirtualRun(strategy, cluster, workers, push_nbytes=1000, answer_nbytes=1000, limits={"seconds": seconds})
    run.run()
    return run


def lately(run: VirtualRun, window_s: float = 10.0) -> Lately:
    return run.figures.lately(run.clock.now_s, window_s)


def steps_per_s(run: VirtualRun, from_s: float) -> float:
    spans = [one for one in run.meter.timeline() if one.start_s >= from_s]
    return sum(one.steps for one in spans) / (run.clock.now_s - from_s)


@pytest.mark.thorough
@pytest.mark.parametrize("ran_with", [ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(16)], ids=lambda one: one.recipe)
def test_a_forecast_is_of_the_speeds_of_now(ran_with: ps.Strategy) -> None:
    """One worker has become ten times slower: whatever ran, each strategy is forecast as it goes since then."""
    asked = [ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(16)]
    found = speeds(lately(a_run(ran_with, STRAGGLER)), ran_with, asked)
    for one in asked:
        direct = steps_per_s(a_run(one, STRAGGLER, seconds=3 * HALF_S), HALF_S + 5)
        assert found[one.name] == pytest.approx(direct, rel=0.15), one.name


def test_an_advice_says_how_much_faster_and_what_is_known_of_accuracy() -> None:
    words = advice_lately(lately(a_run(ps.sync_sgd(), STRAGGLER)), ps.sync_sgd(), WORKERS)
    assert words.startswith("async_sgd would make 7.")
    assert "times as many samples a second at the speeds of the last " in words
    assert "How many it needs for the same accuracy is not known" in words
    assert "it reached 100.0% of what sync_sgd reached with 4 workers" in words


@pytest.mark.parametrize("ran_with", [ps.sync_sgd(), ps.async_sgd()], ids=lambda one: one.recipe)
def test_where_workers_are_equal_nothing_is_advised(ran_with: ps.Strategy) -> None:
    assert advice_lately(lately(a_run(ran_with)), ran_with, WORKERS) == ""


def test_who_is_under_the_right_strategy_is_left_alone() -> None:
    assert advice_lately(lately(a_run(ps.async_sgd(), STRAGGLER)), ps.async_sgd(), WORKERS) == ""


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_of_a_run_that_has_just_begun_nothing_is_said(seconds: float) -> None:
    assert advice_lately(lately(a_run(ps.sync_sgd(), seconds=seconds)), ps.sync_sgd(), WORKERS) == ""


def test_the_last_spans_are_few_begin_with_a_step_and_are_of_who_is_there() -> None:
    meter = Meter(3, seats=4)
    meter.begin(100.0)
    for worker, step_s in ((0, 0.01), (1, 30.0), (2, 0.01)):
        _steps(meter.workers[worker], 100.0, until_s=400.0, step_s=step_s)
    meter.workers[2].left = "died"
    found = meter.lately(400.0, window_s=10.0)
    assert {one.worker for one in found} == {0, 1}
    assert len(found) <= LATELY_ALL
    own = {worker: [one for one in found if one.worker == worker] for worker in (0, 1)}
    assert all(one.start_s >= 289.9 for one in own[0])
    assert all(spans[0].steps == 1 for spans in own.values())
    assert LATELY_LEAST - 2 <= len(own[1]) <= LATELY_LEAST  # its steps are longer than the window


def _steps(one: WorkerMeter, from_s: float, until_s: float, step_s: float) -> None:
    now_s, number = from_s, 0
    while now_s + step_s * 1.1 <= until_s:
        number += 1
        one.pushed(now_s + step_s, 1, 8, number)
        one.granted(now_s + step_s * 1.1, None)
        now_s += step_s * 1.1
