"""A strategy that becomes another one under simulated faults, also while its server dies and is reborn."""

from __future__ import annotations

from collections import Counter

import pytest

from torture import draw_with_switches, run_seed
from torture.plan import DEATHS

SEEDS = 40


@pytest.mark.thorough
def test_promises_hold_over_switches() -> None:
    outcomes = [run_seed(seed, switches=True) for seed in range(SEEDS)]
    assert {one.plan.seed: one.failure for one in outcomes if one.failure} == {}
    tally = sum((one.tally for one in outcomes), Counter[str]())
    expected = ("switches", "server deaths", "server crashes", "worker crashes")
    assert {what: tally[what] for what in expected if tally[what] < 20} == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 15_000, 500))
def test_promises_hold_over_ten_thousand_switches(first: int) -> None:
    switches = 0
    for seed in range(first, first + 500):
        outcome = run_seed(seed, switches=True)
        assert outcome.failure is None, seed
        switches += outcome.tally["switches"]
    assert switches > 1000


@pytest.mark.thorough
def test_the_seeds_cover_phases_of_all_kinds() -> None:
    plans = [draw_with_switches(seed) for seed in range(200)]
    first = {plan.strategy.phases[0].recipe for plan in plans}
    assert {"sync_sgd", "async_sgd", "bounded_staleness", "local_sgd", "buffered", "first_of", "diloco"} <= first
    assert {DEATHS in plan.faults for plan in plans} == {True, False}
    assert {len(plan.strategy.phases) for plan in plans} == {2, 3, 4}
    assert {begins is None for plan in plans for begins, _ in plan.strategy.plan} == {True, False}
