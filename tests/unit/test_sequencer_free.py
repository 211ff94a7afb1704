"""Strategies without rounds, one example each: who goes on, and how far."""

from __future__ import annotations

import pytest

from plesio.core.events import Discard, Fold, Grant, Hold, Verdict
from plesio.strategy import recipes
from support.sequencing import Run, granted, only

# Nobody waits


def test_async_folds_each_contribution_with_its_staleness() -> None:
    run = Run(recipes.async_sgd())
    for _ in range(4):
        run.push(0)
    effects = run.push(1)
    (fold,) = only(Fold, effects)
    assert (fold.version, fold.members[0].computed_from, fold.members[0].staleness) == (5, 0, 4)
    assert fold.scale == pytest.approx(1 / 3)
    assert only(Grant, effects) == [Grant(1, 1, 5, Verdict.TAKEN, 4, freed_by_other=False)]


def test_ringmaster_discards_staleness_r_and_restarts_the_worker() -> None:
    run = Run(recipes.ringmaster(2), workers=3)
    run.push(0)
    assert only(Fold, run.push(2))[0].members[0].staleness == 1
    effects = run.push(1)
    assert effects == [Discard(1, 1, 1, Verdict.STALE, 2, 32), Grant(1, 1, 2, Verdict.STALE, 2)]
    assert only(Fold, run.push(1))[0].members[0].staleness == 0


def test_rennala_counts_only_fresh_contributions() -> None:
    run = Run(recipes.rennala(2))
    assert [type(one) for one in run.push(0)] == [Hold, Grant]
    assert [type(one) for one in run.push(0)] == [Hold, Fold, Grant]
    assert [type(one) for one in run.push(1)] == [Discard, Grant]
    run.push(1)
    effects = run.push(0)
    assert [member.staleness for member in only(Fold, effects)[0].members] == [0, 0]


def test_buffered_holds_contributions_and_folds_k() -> None:
    run = Run(recipes.buffered(3), workers=4)
    for worker in (2, 0):
        effects = run.push(worker)
        assert effects[0] == Hold(worker, 1, weight=1.0)
        assert granted(effects) == [worker], "nobody waits for the fold"
    assert [(one.worker, one.number) for one in run.sequencer.unfolded] == [(2, 1), (0, 1)]
    effects = run.push(0)
    assert run.sequencer.unfolded == []
    assert [type(one) for one in effects] == [Hold, Fold, Grant]
    fold = only(Fold, effects)[0]
    assert [(member.worker, member.number) for member in fold.members] == [(2, 1), (0, 1), (0, 2)]
    assert (fold.held, fold.total_weight, fold.scale) == (True, 3.0, pytest.approx(3 / 4))


def test_a_dead_workers_held_contribution_is_folded() -> None:
    run = Run(recipes.buffered(2))
    run.push(0)
    run.die(0)
    assert [member.worker for member in only(Fold, run.push(1))[0].members] == [0, 1]


# Bounded staleness


def test_bounded_staleness_of_zero_keeps_all_within_one_clock() -> None:
    run = Run(recipes.bounded_staleness(0))
    assert granted(run.push(0)) == []
    assert granted(run.push(1)) == []
    assert granted(run.push(2)) == [0, 1, 2]
    assert run.version == 3, "each was folded as it came"


def test_bounded_staleness_lets_a_worker_get_s_ahead_and_no_more() -> None:
    run = Run(recipes.bounded_staleness(2), workers=2)
    assert [granted(run.push(0)) for _ in range(3)] == [[0], [0], []]
    effects = run.push(1)
    assert only(Grant, effects) == [
        Grant(0, 3, 4, Verdict.TAKEN, 0, freed_by_other=True),
        Grant(1, 1, 4, Verdict.TAKEN, 3, freed_by_other=False),
    ]


def test_the_death_of_the_slowest_releases_waiting_workers() -> None:
    run = Run(recipes.bounded_staleness(0))
    run.push(0)
    run.push(1)
    assert granted(run.die(2)) == [0, 1]


def test_a_late_joiner_starts_at_the_clock_of_the_slowest() -> None:
    run = Run(recipes.bounded_staleness(1), workers=2)
    run.die(1)
    for _ in range(5):
        run.push(0)
    run.join(1)
    assert granted(run.push(0)) == [0]
    assert granted(run.push(0)) == [], "two ahead of the newcomer"
    assert granted(run.push(1)) == [0, 1]
