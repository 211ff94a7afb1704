"""Tables under simulated faults: table servers that lag and die, workers that die with a pull out, are called off, come back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from plesio.strategy import recipes
from torture import ROW_FAULTS, Plan, draw_with_rows, excerpt, run_seed, shrink
from torture.bugs import planted
from torture.world import simulate

SEEDS = 30


@pytest.mark.thorough
def test_promises_hold_with_table_servers() -> None:
    outcomes = [run_seed(seed, tables=True) for seed in range(SEEDS)]
    assert {one.plan.seed: one.failure for one in outcomes if one.failure} == {}
    tally = sum((one.tally for one in outcomes), Counter[str]())
    expected = ("pulls", "pulls ahead", "worker crashes", "table server crashes", "server crashes")
    assert {what: tally[what] for what in expected if tally[what] < 10} == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 12_000, 250))
def test_promises_hold_with_table_servers_in_two_thousand_seeds(first: int) -> None:
    for seed in range(first, first + 250):
        assert run_seed(seed, tables=True).failure is None, seed


@pytest.mark.slow
def test_promises_hold_in_longer_runs() -> None:
    for seed in range(SEEDS, SEEDS + 20):
        assert run_seed(seed, workers=8, contributions=100, tables=True).failure is None, seed


def way(plan: Plan) -> str:
    return f"{plan.strategy.name.split('(')[0]} {plan.strategy.rows}"


def test_the_seeds_cover_every_strategy_that_takes_rows_both_ways() -> None:
    plans = [draw_with_rows(seed) for seed in range(200)]
    both = {
        f"{name} {rows}"
        for name in ("sync_sgd", "first_of", "quorum", "buffered")
        for rows in ("at once", "with the fold")
    }
    assert both <= {way(plan) for plan in plans}
    assert {plan.servers for plan in plans} == {1, 2, 3}
    assert set(ROW_FAULTS) <= {fault for plan in plans for fault in plan.faults}


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("rows", ["with", "each"])
def test_workers_that_come_back_into_a_seat_find_no_rows_of_the_one_before(servers: int, rows: str) -> None:
    faults = frozenset({"worker crashes", "stragglers", "table servers lag"})
    plan = replace(draw_with_rows(1, workers=3, contributions=12), servers=servers, faults=faults, strikes=6)
    outcome = simulate(replace(plan, strategy=recipes.sync_sgd(rows=rows)), story=True)
    assert outcome.failure is None, "\n".join(excerpt(outcome))
    assert outcome.tally["worker crashes"] > 1


def test_the_same_seed_gives_the_same_story() -> None:
    first, second = (run_seed(3, tables=True, story=True) for _ in range(2))
    assert len(first.story) > 20
    assert first == second


@pytest.mark.thorough
def test_a_failure_is_shrunk_to_one_server_and_a_short_story() -> None:
    bug = "keys are read when rows step"
    smallest = shrink(draw_with_rows(0), planted(bug), tries=150)
    assert smallest.failure is not None
    assert smallest.plan.servers == 1
    assert any("wants rows" in line for line in excerpt(smallest))
