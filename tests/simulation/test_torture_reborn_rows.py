"""Tables at a server that is reborn with them, under simulated faults: no row steps twice, and none is served late."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from plesio.strategy import recipes
from torture import draw_with_rows_and_deaths, excerpt, run_seed
from torture.plan import DEATHS
from torture.world import simulate

SEEDS = 30
NOT_ALL = 29  # a prime: each kind of boundary comes


@pytest.mark.thorough
def test_promises_hold_while_a_server_with_tables_dies_and_is_reborn() -> None:
    outcomes = [run_seed(seed, tables=True, deaths=True) for seed in range(SEEDS)]
    assert {one.plan.seed: one.failure for one in outcomes if one.failure} == {}
    tally = sum((one.tally for one in outcomes), Counter[str]())
    expected = ("pulls", "pulls ahead", "server deaths", "servers given up", "server crashes", "worker crashes")
    assert {what: tally[what] for what in expected if tally[what] < 10} == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 14_000, 250))
def test_promises_hold_in_four_thousand_seeds(first: int) -> None:
    for seed in range(first, first + 250):
        assert run_seed(seed, tables=True, deaths=True).failure is None, seed


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ["with", "each"])
def test_a_server_with_tables_may_die_at_any_word_it_stores(rows: str) -> None:
    plan = draw_with_rows_and_deaths(1, workers=2, contributions=3)
    plan = replace(plan, strategy=recipes.sync_sgd(rows=rows), faults=frozenset({DEATHS}), strikes=0, chaos_s=0.03)
    whole = simulate(plan)
    assert whole.failure is None
    outcomes = [simulate(plan, crash_at=boundary) for boundary in range(1, whole.boundaries, NOT_ALL)]
    assert [excerpt(one) for one in outcomes if one.failure] == []
    assert sum(one.tally["server deaths"] > 0 for one in outcomes) > 0.8 * len(outcomes)  # else no spare was there yet
