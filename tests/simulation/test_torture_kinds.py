"""More kinds of simulated faults: servers that die and are reborn, table servers that lag and die, strategies that change."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from plesio.strategy import Strategy, recipes
from support.long_forms import in_turn
from support.runs import by_name
from torture import (
    ROW_FAULTS,
    Plan,
    draw_with_deaths,
    draw_with_rows,
    draw_with_rows_and_deaths,
    draw_with_switches,
    excerpt,
    run_seed,
    shrink,
)
from torture.bugs import planted
from torture.plan import DEATHS
from torture.sessions.envelopes import Level
from torture.world import Outcome, simulate


class Kind(NamedTuple):
    """`often`: what happens so many times at least in the first `seeds`. `block`: of so many seeds, of `later` in all."""

    given: dict[str, bool]
    seeds: int
    least: int
    often: tuple[str, ...]
    later: int
    block: int = 500


SERVERS = ("server deaths", "servers given up", "server crashes", "worker crashes")
KINDS = {
    "deaths": Kind({"deaths": True}, 40, 20, (*SERVERS, "letters lost"), 10_000),
    "switches": Kind({"switches": True}, 40, 20, ("switches", *SERVERS[:1], *SERVERS[2:]), 5_000),
    "tables": Kind(
        {"tables": True}, 30, 10, ("pulls", "pulls ahead", "table server crashes", *SERVERS[2:]), 2_000, 250
    ),
    "both": Kind({"tables": True, "deaths": True}, 30, 10, ("pulls", "pulls ahead", *SERVERS), 4_000, 250),
}
NOT_ALL = 29  # a prime: each kind of boundary comes


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_promises_hold(kind: str) -> None:
    given, seeds, least, often, *_ = KINDS[kind]
    outcomes = [run_seed(seed, **given) for seed in range(seeds)]
    assert {one.plan.seed: one.failure for one in outcomes if one.failure} == {}
    tally = sum((one.tally for one in outcomes), Counter[str]())
    assert {what: tally[what] for what in often if tally[what] < least} == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind, of in KINDS.items() for first in range(0, of.later, of.block)]
)
def test_promises_hold_in_thousands_of_seeds(kind: str, first: int) -> None:
    switches = 0
    for seed in range(10_000 + first, 10_000 + first + KINDS[kind].block):
        outcome = run_seed(seed, **KINDS[kind].given)
        assert outcome.failure is None, seed
        switches += outcome.tally["switches"]
    assert kind != "switches" or switches > 1000


@pytest.mark.slow
def test_promises_hold_in_longer_runs() -> None:
    for seed in range(30, 50):
        assert run_seed(seed, workers=8, contributions=100, tables=True).failure is None, seed


@pytest.mark.parametrize(("kind", "seed"), [("deaths", 3), ("deaths", 4), ("tables", 3), ("none", 3), ("none", 4)])
def test_the_same_seed_gives_the_same_story(kind: str, seed: int) -> None:
    given = KINDS[kind].given if kind in KINDS else {}
    first, second = (run_seed(seed, **given, story=True) for _ in range(2))
    assert len(first.story) > 20
    assert first == second
    assert replace(first, story=()) == run_seed(seed, **given)


# Deaths of the server alone: to everybody there was one


STRATEGIES = (
    recipes.sync_sgd(),
    recipes.async_sgd(),
    recipes.bounded_staleness(1),
    recipes.buffered(2),
    recipes.first_of(1),
)


def calm(plan: Plan, **given: Any) -> Plan:
    """Two workers, a few contributions, no death but the test's."""
    return replace(plan, faults=frozenset({DEATHS}), strikes=0, chaos_s=0.03, **given)


def with_strategy(strategy: Strategy, level: Level = Level.APPLIED) -> Plan:
    return calm(draw_with_deaths(1, workers=2, contributions=3), strategy=strategy, level=level, checkpoint_s=0.02)


def dies(plan: Plan, step: int) -> list[Outcome]:
    """The runs whose server dies at a boundary: at each, or at one of so many."""
    whole = simulate(plan)
    assert (whole.failure, whole.tally["server deaths"]) == (None, 0)
    boundaries = range(1, whole.boundaries, step)
    outcomes = [simulate(plan, crash_at=boundary) for boundary in boundaries]
    for boundary, outcome in zip(boundaries, outcomes, strict=True):
        assert outcome.failure is None, "\n".join(excerpt(simulate(plan, crash_at=boundary, story=True)))
    return outcomes


def assert_most_died(outcomes: list[Outcome]) -> None:
    assert sum(one.tally["server deaths"] > 0 for one in outcomes) > 0.8 * len(outcomes)  # else no spare was there yet


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "level"), in_turn(STRATEGIES[::2], [Level.APPLIED, Level.DURABLE]), ids=lambda one: one.name.lower()
)
def test_the_server_may_die_at_any_word_it_stores(strategy: Strategy, level: Level) -> None:
    assert_most_died(dies(with_strategy(strategy, level), NOT_ALL))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=by_name)
def test_the_server_may_die_at_each_word_it_stores(strategy: Strategy) -> None:
    dies(with_strategy(strategy), 1)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ["with", "each"])
def test_a_server_with_tables_may_die_at_any_word_it_stores(rows: str) -> None:
    plan = draw_with_rows_and_deaths(1, workers=2, contributions=3)
    assert_most_died(dies(calm(plan, strategy=recipes.sync_sgd(rows=rows)), NOT_ALL))


@pytest.mark.thorough
def test_a_server_that_dies_too_often_is_given_up_and_its_run_goes_on_from_the_checkpoint() -> None:
    outcomes = [run_seed(seed, deaths=True, story=True) for seed in range(20)]
    given_up = [one for one in outcomes if one.tally["servers given up"]]
    assert len(given_up) > 3
    for one in given_up:
        assert one.failure is None
        assert one.tally["server crashes"] >= one.tally["servers given up"]
    assert any("is REBORN" in line for one in outcomes for line in one.story)


# Tables


def test_the_seeds_cover_every_strategy_that_takes_rows_both_ways() -> None:
    plans = [draw_with_rows(seed) for seed in range(200)]
    drawn = {(plan.strategy.name.split("(")[0], str(plan.strategy.rows)) for plan in plans}
    names, ways = ("sync_sgd", "first_of", "quorum", "buffered"), ("at once", "with the fold")
    assert {(name, rows) for name in names for rows in ways} <= drawn
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


@pytest.mark.thorough
def test_a_failure_is_shrunk_to_one_server_and_a_short_story() -> None:
    bug = "keys are read when rows step"
    smallest = shrink(draw_with_rows(0), planted(bug), tries=150)
    assert smallest.failure is not None
    assert smallest.plan.servers == 1
    assert any("wants rows" in line for line in excerpt(smallest))


# Another strategy in flight


@pytest.mark.thorough
def test_the_seeds_cover_phases_of_all_kinds() -> None:
    plans = [draw_with_switches(seed) for seed in range(200)]
    first = {plan.strategy.phases[0].recipe for plan in plans}
    assert {"sync_sgd", "async_sgd", "bounded_staleness", "local_sgd", "buffered", "first_of", "diloco"} <= first
    assert {DEATHS in plan.faults for plan in plans} == {True, False}
    assert {len(plan.strategy.phases) for plan in plans} == {2, 3, 4}
    assert {begins is None for plan in plans for begins, _ in plan.strategy.plan} == {True, False}
