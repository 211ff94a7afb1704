"""Rounds, one example each: barriers, and the first m of n."""

from __future__ import annotations

from math import inf

import pytest

from plesio.core.events import Cancel, Discard, Effect, Fold, Grant, RowsWanted, Serve, Verdict
from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import Fresh, Round
from support.sequencing import Run, granted, only

# Barriers


def test_a_barrier_holds_all_until_the_last_push() -> None:
    run = Run(recipes.sync_sgd())
    assert run.push(2) == run.push(0) == []
    effects = run.push(1)
    (fold,) = only(Fold, effects)
    assert [member.worker for member in fold.members] == [0, 1, 2]
    assert [member.share for member in fold.members] == pytest.approx([1 / 3] * 3)
    assert (fold.version, fold.scale, fold.held) == (1, 1.0, False)
    assert effects.index(fold) == 0
    assert granted(effects) == [0, 1, 2]
    assert {one.worker: one.freed_by_other for one in only(Grant, effects)} == {0: True, 1: False, 2: True}


def test_a_barrier_recounts_when_a_worker_dies_before_its_push() -> None:
    run = Run(recipes.sync_sgd())
    run.push(0)
    run.push(1)
    effects = run.die(2)
    (fold,) = only(Fold, effects)
    assert [member.worker for member in fold.members] == [0, 1]
    assert granted(effects) == [0, 1]
    assert all(one.freed_by_other for one in only(Grant, effects))
    run.push(0)
    assert only(Fold, run.push(1)), "the next round is of two"


def test_a_dead_workers_push_counts_in_its_round() -> None:
    run = Run(recipes.sync_sgd())
    run.push(0)
    assert run.die(0) == []
    run.push(1)
    effects = run.push(2)
    (fold,) = only(Fold, effects)
    assert [member.worker for member in fold.members] == [0, 1, 2]
    assert granted(effects) == [1, 2]


def test_a_worker_rejoining_within_a_round_pushes_again() -> None:
    run = Run(recipes.sync_sgd(), workers=2)
    run.push(0)
    run.die(0)
    run.join(0)
    assert run.push(0) == []
    (fold,) = only(Fold, run.push(1))
    assert [(member.worker, member.incarnation) for member in fold.members] == [(0, 1), (0, 2), (1, 1)]


def test_the_last_worker_to_leave_completes_the_round() -> None:
    run = Run(recipes.sync_sgd(), workers=2)
    run.push(0)
    run.die(0)
    assert [len(fold.members) for fold in only(Fold, run.die(1))] == [1]
    assert run.sequencer._pending == []


def test_a_late_joiner_is_waited_for() -> None:
    run = Run(recipes.sync_sgd(), workers=2)
    run.die(1)
    assert only(Fold, run.push(0))
    assert run.join(1) == [Grant(1, 0, version=1, verdict=Verdict.TAKEN, staleness=0)]
    assert run.push(0) == []
    assert only(Fold, run.push(1))[0].version == 2


def test_a_non_finite_contribution_does_not_hold_the_round() -> None:
    run = Run(recipes.sync_sgd())
    run.push(0)
    assert run.push(1, finite=False, samples=7) == [Discard(1, 1, 1, Verdict.NOT_FINITE, 0, 7)]
    effects = run.push(2)
    (fold,) = only(Fold, effects)
    assert [(member.worker, member.share) for member in fold.members] == [(0, 0.5), (2, 0.5)]
    verdicts = {one.worker: one.verdict for one in only(Grant, effects)}
    assert verdicts == {0: Verdict.TAKEN, 1: Verdict.NOT_FINITE, 2: Verdict.TAKEN}


def test_a_round_without_finite_contributions_makes_no_version() -> None:
    run = Run(recipes.sync_sgd(), workers=2)
    run.push(0, finite=False)
    effects = run.push(1, finite=False)
    assert (run.version, only(Fold, effects), granted(effects)) == (0, [], [0, 1])
    run.push(0)
    assert only(Fold, run.push(1))


# The first m


def test_a_late_non_finite_contribution_does_not_count_in_the_round() -> None:
    run = Run(recipes.first_of(2, cancel_late=False), workers=3)
    run.push(0)
    assert only(Fold, run.push(1))
    effects = run.push(2, finite=False, samples=7)
    assert only(Discard, effects) == [Discard(2, 1, 1, Verdict.NOT_FINITE, 1, 7)]
    assert only(Grant, effects) == [Grant(2, 1, version=1, verdict=Verdict.NOT_FINITE, staleness=1)]
    run.push(0)
    (fold,) = only(Fold, run.push(1))
    assert [member.worker for member in fold.members] == [0, 1]


def test_the_first_m_are_folded_and_the_late_cancelled() -> None:
    run = Run(recipes.first_of(2), workers=4)
    run.push(3)
    effects = run.push(1)
    assert [member.worker for member in only(Fold, effects)[0].members] == [1, 3]
    assert granted(effects) == [1, 3]
    assert only(Cancel, effects) == [Cancel(0, number=1, version=1), Cancel(2, number=1, version=1)]
    assert [one.verdict for one in only(Discard, effects)] == [Verdict.CANCELLED] * 2


def test_a_push_crossing_its_cancellation_is_ignored() -> None:
    run = Run(recipes.first_of(1), workers=2)
    run.push(0)
    assert run.push(1) == [Discard(1, 1, 1, Verdict.DUPLICATE, 0)]
    (fold,) = only(Fold, run.push(1))
    assert [(member.worker, member.number, member.staleness) for member in fold.members] == [(1, 2, 0)]


# The first k, and a grace


def test_a_late_contribution_is_folded_into_the_round_it_reaches() -> None:
    run = Run(recipes.quorum(2), workers=3)
    run.push(0)
    assert only(Fold, run.push(1))
    run.push(2)
    (fold,) = only(Fold, run.push(0))
    assert [(one.worker, one.staleness) for one in fold.members] == [(0, 0), (2, 1)]
    assert [one.share for one in fold.members] == pytest.approx([1 / (1 + 0.5**0.5), 0.5**0.5 / (1 + 0.5**0.5)])
    assert fold.scale == pytest.approx((1 + 0.5**0.5) / 2), "it is discounted, and the others get no more for it"


def test_a_grace_ends_with_the_first_tick_after_it() -> None:
    run = Run(recipes.quorum(2, grace_s=1.0), workers=4)
    run.now_s = 10.0
    run.push(0)
    assert run.sequencer.grace_until_s == inf
    assert run.push(1) == []
    run.now_s = 10.5
    assert run.push(2) == []
    assert run.sequencer.grace_until_s == 11.0, "it begins once"
    assert run.tick(10.9) == []
    effects = run.tick(11.0)
    assert [one.worker for one in only(Fold, effects)[0].members] == [0, 1, 2]
    assert granted(effects) == [0, 1, 2]
    assert run.sequencer.grace_until_s == inf
    assert run.tick(12.0) == []


def test_no_contribution_ends_a_grace_but_the_last() -> None:
    run = Run(recipes.quorum(1, grace_s=1.0), workers=3)
    run.push(0)
    run.now_s = 5.0  # nobody told that time went by
    assert run.push(1) == []
    assert granted(run.push(2)) == [0, 1, 2]
    assert run.tick(6.0) == [], "the grace of the round before is over with it"


def test_a_death_in_a_grace_completes_the_round() -> None:
    run = Run(recipes.quorum(2, grace_s=1.0), workers=3)
    run.push(0)
    run.push(1)
    (fold,) = only(Fold, run.die(2))
    assert [one.worker for one in fold.members] == [0, 1]


def test_nobody_waits_in_a_grace_for_a_round_without_finite_contributions() -> None:
    run = Run(recipes.quorum(1, grace_s=1.0), workers=2)
    assert granted(run.push(0, finite=False)) == [0]
    assert (run.version, run.sequencer.grace_until_s) == (0, inf)
    run.push(0)
    effects = run.push(1, finite=False)
    assert [one.worker for one in only(Fold, effects)[0].members] == [0]


def called_off(worker: int, number: int, version: int, staleness: int) -> list[Effect]:
    return [Discard(worker, 1, number, Verdict.CANCELLED, staleness), Cancel(worker, number, version)]


def test_a_worker_is_cancelled_once_until_it_is_heard() -> None:
    run = Run(recipes.first_of(1), workers=2)
    assert only(Cancel, run.push(0)) == [Cancel(1, number=1, version=1)]
    assert [only(Cancel, run.push(0)) for _ in range(100)] == [[]] * 100


@pytest.mark.parametrize("crosses", [False, True], ids=["abandoned", "crossed"])
def test_a_worker_behind_when_heard_is_cancelled_again(crosses: bool) -> None:
    run = Run(recipes.first_of(1), workers=2)
    for _ in range(3):
        run.push(0)
    effects = run.push(1)[1:] if crosses else run.abandon(1)
    assert effects == called_off(1, number=2, version=3, staleness=2)
    assert run.abandon(1) == []
    (fold,) = only(Fold, run.push_number(1, 3))
    assert [(member.number, member.computed_from) for member in fold.members] == [(3, 3)]


def test_a_skipped_number_acknowledges_the_cancellation() -> None:
    """Where messages are lost, the report of the dropped step may never come."""
    run = Run(recipes.first_of(1), workers=2)
    run.push(0)
    run.push(0)
    assert run.push_number(1, 2) == [Discard(1, 1, 2, Verdict.STALE, 1, 32), Grant(1, 2, 2, Verdict.STALE, 1)]
    assert only(Cancel, run.push(0)) == [Cancel(1, number=3, version=3)]


def test_rows_ahead_wait_for_their_own_contribution_though_the_one_before_was_called_off() -> None:
    run = Run(recipes.first_of(1), workers=2)
    run.push(0)  # cancels number 1 of worker 1, which has heard of it, and is at number 2
    assert run.tell(RowsWanted(1, 1, 3, ahead=True)) == []
    assert only(Serve, run.push(0)) == []
    assert run.abandon(1) == [*called_off(1, number=2, version=2, staleness=1), Serve(1, 3, ahead=True)]


def test_crossed_pushes_return_their_batches_after_a_second_cancellation() -> None:
    run = Run(recipes.first_of(1), workers=2)
    run.lease(1, most=1, total=2)
    run.push(0)  # cancels number 1 of worker 1, which is on its way
    run.push(0)  # number 2 is behind as well, when number 1 comes
    crossed = Discard(1, 1, 1, Verdict.DUPLICATE, 0)
    assert run.push(1, batches=1) == [crossed, *called_off(1, number=2, version=2, staleness=1)]
    assert run.push_number(1, 1, batches=1) == [crossed]
    assert set(run.lease(0, most=2, total=2)) == {(0, 0), (0, 1)}


def test_an_abandoned_steps_batches_go_to_another_worker() -> None:
    run = Run(recipes.first_of(1), workers=2)
    (batch,) = run.lease(1)
    run.push(0)
    assert run.abandon(1, batches=1) == []
    assert run.lease(0)[0] == batch


def test_without_cancellation_late_work_is_discarded_on_arrival() -> None:
    run = Run(recipes.first_of(1, cancel_late=False), workers=2)
    assert only(Cancel, run.push(0)) == []
    effects = run.push(1, samples=5)
    assert effects == [Discard(1, 1, 1, Verdict.STALE, 1, 5), Grant(1, 1, 1, Verdict.STALE, 1)]
    assert only(Fold, run.push(1))[0].members[0].staleness == 0


def test_fewer_than_m_workers_complete_the_round() -> None:
    run = Run(recipes.first_of(3), workers=3)
    run.push(0)
    run.push(1)
    assert len(only(Fold, run.die(2))[0].members) == 2


def test_fresh_1_admits_late_work_of_one_version_ago() -> None:
    late = Strategy(name="late", admit=Fresh(1), gather=Round(first=2), release=recipes.sync_sgd().release)
    run = Run(late)
    run.push(0)
    run.push(1)
    assert run.push(2) == []
    assert [member.staleness for member in only(Fold, run.push(0))[0].members] == [0, 1]


# Without work, and with a deadline


def test_a_contribution_without_work_is_waited_for_no_longer_and_weighs_nothing() -> None:
    run = Run(recipes.fedavg())
    run.lease(2, total=3)
    assert run.push(2, steps=0, samples=0, batches=1) == []
    run.push(0, samples=10)
    effects = run.push(1, samples=30)
    (fold,) = only(Fold, effects)
    assert [(one.worker, one.share) for one in fold.members] == [(0, 0.25), (1, 0.75)]
    assert granted(effects) == [0, 1, 2]
    assert run.leases.done == 1, "what it had taken is done"


def test_a_round_without_any_work_makes_no_version() -> None:
    run = Run(recipes.fedavg(), workers=2)
    run.push(0, steps=0)
    assert granted(run.push(1, steps=0)) == [0, 1]
    assert run.version == 0


def test_a_worker_without_work_goes_on_where_nobody_waits() -> None:
    run = Run(recipes.fedbuff(2), workers=2)
    assert granted(run.push(0, steps=0)) == [0]
    run.push(0)
    assert run.version == 0, "it is not in the buffer"


def test_a_buffer_is_folded_at_its_deadline_with_what_has_come() -> None:
    run = Run(recipes.fedavg(3, deadline_s=2.0), workers=4)
    run.now_s = 10.0
    assert granted(run.push(0, samples=30)) == [0]
    run.now_s = 11.0
    run.push(1, samples=10)
    assert run.sequencer.grace_until_s == 12.0, "from the first that came"
    assert run.tick(11.9) == []
    (fold,) = only(Fold, run.tick(12.0))
    assert ([one.share for one in fold.members], fold.held, run.version) == ([0.75, 0.25], True, 1)
    assert run.sequencer.grace_until_s == inf
    run.push(2, samples=20)
    assert run.sequencer.grace_until_s == 14.0


def test_a_full_buffer_does_not_wait_for_its_deadline() -> None:
    run = Run(recipes.fedavg(2, deadline_s=2.0), workers=2)
    run.push(0)
    assert only(Fold, run.push(1))
    assert run.sequencer.grace_until_s == inf
