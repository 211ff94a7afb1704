"""The real core under simulated faults: the invariants hold for every seed, and the simulation itself is sound."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from plesio.errors import ConfigurationError
from plesio.strategy import Strategy, recipes
from support.long_forms import in_turn
from torture import FAULTS, Plan, draw, excerpt, run_seed, shrink
from torture.__main__ import torture
from torture.bugs import planted
from torture.disk import Disk
from torture.sessions.envelopes import Level
from torture.world import Parts, World, simulate

SEEDS = 200
BLOCK = 50


@pytest.mark.few(1)
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_invariants_hold(first: int) -> None:
    broken = {seed: run_seed(seed).failure for seed in range(first, first + BLOCK)}
    assert {seed: failure for seed, failure in broken.items() if failure} == {}


@pytest.mark.thorough
def test_invariants_hold_at_full_size() -> None:
    for seed in range(SEEDS, SEEDS + 20):
        assert run_seed(seed, workers=8, contributions=200).failure is None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_invariants_hold_in_ten_thousand_seeds(first: int) -> None:
    for seed in range(first, first + 500):
        assert run_seed(seed).failure is None, seed


@pytest.mark.slow
def test_the_seeds_cover_every_strategy_and_fault() -> None:
    plans = [draw(seed) for seed in range(SEEDS)]
    names = {plan.strategy.name.split("(")[0] for plan in plans}
    not_served = {"allreduce", "hogwild"}
    assert names == {name for name, make in recipes.RECIPES.items()} - not_served
    assert {fault for plan in plans for fault in plan.faults} == set(FAULTS)
    assert {plan.level for plan in plans} == set(Level)
    tally: Counter[str] = Counter()
    for plan in plans[:100]:
        tally += simulate(plan).tally
    expected = ("letters lost", "letters repeated", "partitions", "worker crashes", "server crashes", "hangs")
    assert {what: tally[what] for what in expected if tally[what] < 20} == {}


def test_tables_are_bounded_by_the_number_of_seats() -> None:
    for seed in range(40):
        world = World(draw(seed), Parts())
        assert world.run().failure is None
        server, seats = world.server, world.plan.workers
        tables = (server.service._peers, server.sequencer.members.seats, server.sequencer.members._last_incarnation)
        assert [len(table) for table in tables if len(table) > seats] == []
        assert server.service.outbox == []


# A crash at every boundary

STRATEGIES = (
    recipes.sync_sgd(),
    recipes.first_of(1),
    recipes.async_sgd(),
    recipes.bounded_staleness(1),
    recipes.buffered(2),
)


def calm(strategy: Strategy, level: Level = Level.APPLIED) -> Plan:
    """Two workers, a few contributions, no fault but what the test does."""
    plan = draw(1, workers=2, contributions=4)
    return replace(plan, strategy=strategy, level=level, faults=frozenset(), checkpoint_s=0.02, chaos_s=0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "level"), in_turn(STRATEGIES, [Level.APPLIED, Level.DURABLE]), ids=lambda one: one.name.lower()
)
def test_the_server_may_crash_between_any_two_effects_and_disk_steps(strategy: Strategy, level: Level) -> None:
    plan = calm(strategy, level)
    whole = simulate(plan)
    assert whole.failure is None
    assert whole.boundaries > 40
    for boundary in range(1, min(whole.boundaries, 150)):
        outcome = simulate(plan, crash_at=boundary)
        assert outcome.tally["server crashes"] == 1
        assert outcome.failure is None, "\n".join(excerpt(simulate(plan, crash_at=boundary, story=True)))


def test_the_simulated_disk_keeps_written_checkpoints() -> None:
    for seed in range(200):
        disk = Disk(random.Random(seed))
        for step in disk.STEPS:
            getattr(disk, step)(b"first")
        for step in disk.STEPS[: seed % 5]:
            getattr(disk, step)(b"second")
        disk.crash()
        assert disk.load() in ((b"first", b"second") if seed % 5 >= 3 else (b"first",))
        assert disk.surviving() == disk.load()


# The simulation itself


def test_a_failure_is_shrunk_to_a_short_story() -> None:
    bug = "a restart is not told"
    outcome = run_seed(0, bug, workers=6, contributions=40)
    assert outcome.failure is not None
    smallest = shrink(outcome.plan, planted(bug))
    assert smallest.failure is not None
    assert smallest.failure.startswith("a restart is told")
    assert smallest.plan.workers == 1
    assert smallest.plan.faults == {"server crashes"}
    lines = excerpt(smallest)
    assert any("server CRASHES" in line for line in lines)
    assert any("pushes 1 (from version 0)" in line for line in lines)
    assert lines[-1].endswith(f"BROKEN: {smallest.failure}")
    assert simulate(smallest.plan, planted(bug)).failure == smallest.failure


def test_a_passing_plan_is_not_shrunk() -> None:
    plan = draw(0)
    assert shrink(plan, tries=3).plan == plan


def test_an_unknown_bug_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown bug 'no dedup'; known: .*did you mean 'no dedupe'"):
        run_seed(0, "no dedup")


# The command


def test_the_command_prints_a_tally(capsys: pytest.CaptureFixture[str]) -> None:
    assert torture(seeds=20, first_seed=5) == 0
    said = capsys.readouterr().out
    for words in ("20 (", "failed", "contributions made", "letters lost", "server crashes"):
        assert words in said


def test_the_command_prints_the_story_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert torture(seeds=3, bug="a restart is not told") == 1
    said = capsys.readouterr().out
    assert "seed 0 FAILED: a restart is told" in said
    assert "again: PYTHONPATH=tests python -m torture --first-seed 0 --seeds 1 --bug 'a restart is not told'" in said
    assert "the smallest run that fails: 1 workers" in said
    assert "BROKEN: a restart is told" in said


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert torture(seeds=30, workers=2, contributions=5, bug="a restart is not told", as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert len(document["failures"]) == 5
    assert {"seed", "plan", "broken"} == set(document["failures"][0])
    assert document["seeds"] <= 30
    assert document["happened"]["server crashes"] >= 5
