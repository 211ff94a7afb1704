"""The server that is reborn under simulated faults: its process dies at any moment, and to everybody there was one server."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from plesio.strategy import Strategy, recipes
from support.long_forms import in_turn
from torture import Plan, draw_with_deaths, excerpt, run_seed
from torture.plan import DEATHS
from torture.sessions.envelopes import Level
from torture.world import Outcome, simulate

SEEDS = 40
STRATEGIES = (
    recipes.sync_sgd(),
    recipes.async_sgd(),
    recipes.bounded_staleness(1),
    recipes.buffered(2),
    recipes.first_of(1),
)
NOT_ALL = 29  # a prime: each kind of boundary comes


@pytest.mark.thorough
def test_promises_hold_while_servers_die_and_are_reborn() -> None:
    outcomes = [run_seed(seed, deaths=True) for seed in range(SEEDS)]
    assert {one.plan.seed: one.failure for one in outcomes if one.failure} == {}
    tally = sum((one.tally for one in outcomes), Counter[str]())
    expected = ("server deaths", "servers given up", "server crashes", "worker crashes", "letters lost")
    assert {what: tally[what] for what in expected if tally[what] < 20} == {}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_promises_hold_in_ten_thousand_seeds(first: int) -> None:
    for seed in range(first, first + 500):
        assert run_seed(seed, deaths=True).failure is None, seed


def calm(strategy: Strategy, level: Level) -> Plan:
    """Two workers, a few contributions, no death but the test's."""
    plan = draw_with_deaths(1, workers=2, contributions=3)
    faults = frozenset({DEATHS})
    return replace(plan, strategy=strategy, level=level, faults=faults, strikes=0, checkpoint_s=0.02, chaos_s=0.03)


def dies(plan: Plan, boundaries: range) -> list[Outcome]:
    """The runs whose server dies at one of these boundaries."""
    outcomes = [simulate(plan, crash_at=boundary) for boundary in boundaries]
    for boundary, outcome in zip(boundaries, outcomes, strict=True):
        assert outcome.failure is None, "\n".join(excerpt(simulate(plan, crash_at=boundary, story=True)))
    return outcomes


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "level"), in_turn(STRATEGIES[::2], [Level.APPLIED, Level.DURABLE]), ids=lambda one: one.name.lower()
)
def test_the_server_may_die_at_any_word_it_stores(strategy: Strategy, level: Level) -> None:
    plan = calm(strategy, level)
    whole = simulate(plan)
    assert whole.failure is None
    assert whole.tally["server deaths"] == 0
    outcomes = dies(plan, range(1, whole.boundaries, NOT_ALL))
    assert sum(one.tally["server deaths"] > 0 for one in outcomes) > 0.8 * len(outcomes)  # else no spare was there yet


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
def test_the_server_may_die_at_each_word_it_stores(strategy: Strategy) -> None:
    plan = calm(strategy, Level.APPLIED)
    dies(plan, range(1, simulate(plan).boundaries))


@pytest.mark.thorough
def test_a_server_that_dies_too_often_is_given_up_and_its_run_goes_on_from_the_checkpoint() -> None:
    outcomes = [run_seed(seed, deaths=True, story=True) for seed in range(20)]
    given_up = [one for one in outcomes if one.tally["servers given up"]]
    assert len(given_up) > 3
    for one in given_up:
        assert one.failure is None
        assert one.tally["server crashes"] >= one.tally["servers given up"]
    assert any("is REBORN" in line for one in outcomes for line in one.story)


@pytest.mark.parametrize("seed", [3, 4])
def test_the_same_seed_gives_the_same_story(seed: int) -> None:
    first, second = (run_seed(seed, deaths=True, story=True) for _ in range(2))
    assert first == second
    assert replace(first, story=()) == run_seed(seed, deaths=True)
