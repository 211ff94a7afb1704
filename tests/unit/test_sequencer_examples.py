"""What a user relies on, one example each, straight at the sequencer. The promises in general: `test_sequencer.py`."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import pytest

from plesio import recipes
from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Effect,
    Evict,
    Fold,
    Grant,
    Hold,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Pushed,
    Reported,
    Ticked,
    Verdict,
)
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.rules import (
    BySamples,
    DelayAdaptive,
    Equal,
    Fresh,
    Hinge,
    Inverse,
    Polynomial,
    Round,
    UserOptimizer,
    Weigh,
)
from plesio.strategy import Strategy

Kind = TypeVar("Kind")


def only(kind: type[Kind], effects: list[Effect]) -> list[Kind]:
    return [one for one in effects if isinstance(one, kind)]


def granted(effects: list[Effect]) -> list[int]:
    return sorted(one.worker for one in only(Grant, effects))


class Run:
    """A sequencer with its workers joined; counts the numbers of their pushes."""

    def __init__(self, strategy: Strategy, workers: int = 3, silence_s: float = 300.0) -> None:
        self.leases = DataLeases(workers, stealing=not strategy.in_lock_step)
        self.sequencer = Sequencer(strategy, workers, self.leases, silence_s)
        self.now_s = 0.0
        self.numbers: Counter[int] = Counter()
        self.incarnations: Counter[int] = Counter()
        for worker in range(workers):
            self.join(worker)

    @property
    def version(self) -> int:
        return self.sequencer.version

    def join(self, worker: int) -> list[Effect]:
        self.incarnations[worker] += 1
        self.numbers[worker] = 0
        return self.sequencer.receive(Joined(worker, self.incarnations[worker]), self.now_s)

    def push(self, worker: int, *, finite: bool = True, samples: int = 32, batches: int = 0) -> list[Effect]:
        self.numbers[worker] += 1
        return self.push_number(worker, self.numbers[worker], finite=finite, samples=samples, batches=batches)

    def push_number(
        self, worker: int, number: int, *, finite: bool = True, samples: int = 32, batches: int = 0
    ) -> list[Effect]:
        event = Pushed(worker, self.incarnations[worker], number, 1, samples, batches, finite)
        return self.sequencer.receive(event, self.now_s)

    def die(self, worker: int) -> list[Effect]:
        return self.sequencer.receive(Left(worker, self.incarnations[worker], died=True), self.now_s)

    def lease(self, worker: int, most: int = 1, epoch: int = 0, total: int = 6) -> tuple[tuple[int, int], ...]:
        event = LeaseWanted(worker, self.incarnations[worker], epoch, total, most)
        return only(Leased, self.sequencer.receive(event, self.now_s))[0].batches

    def abandon(self, worker: int, batches: int) -> None:
        assert self.sequencer.receive(Abandoned(worker, self.incarnations[worker], batches), self.now_s) == []

    def tick(self, now_s: float) -> list[Effect]:
        self.now_s = now_s
        return self.sequencer.receive(Ticked(), now_s)


# Barriers


def test_a_barrier_holds_everybody_until_the_last_came() -> None:
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


def test_what_a_worker_pushed_before_it_died_still_counts_and_nobody_waits_for_more() -> None:
    run = Run(recipes.sync_sgd())
    run.push(0)
    assert run.die(0) == []
    run.push(1)
    effects = run.push(2)
    (fold,) = only(Fold, effects)
    assert [member.worker for member in fold.members] == [0, 1, 2]
    assert granted(effects) == [1, 2]


def test_a_worker_that_comes_back_within_a_round_pushes_for_its_new_life_too() -> None:
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
    assert run.sequencer.pending == 0


def test_a_late_joiner_is_waited_for() -> None:
    run = Run(recipes.sync_sgd(), workers=2)
    run.die(1)
    assert only(Fold, run.push(0))
    assert run.join(1) == [Grant(1, 0, version=1, verdict=Verdict.TAKEN, staleness=0)]
    assert run.push(0) == []
    assert only(Fold, run.push(1))[0].version == 2


def test_a_contribution_that_is_not_finite_does_not_hold_the_round() -> None:
    run = Run(recipes.sync_sgd())
    run.push(0)
    assert run.push(1, finite=False, samples=7) == [Discard(1, 1, 1, Verdict.NOT_FINITE, 0, 7)]
    effects = run.push(2)
    (fold,) = only(Fold, effects)
    assert [(member.worker, member.share) for member in fold.members] == [(0, 0.5), (2, 0.5)]
    verdicts = {one.worker: one.verdict for one in only(Grant, effects)}
    assert verdicts == {0: Verdict.TAKEN, 1: Verdict.NOT_FINITE, 2: Verdict.TAKEN}


def test_a_round_without_anything_finite_makes_no_version_and_lets_everybody_go_on() -> None:
    run = Run(recipes.sync_sgd(), workers=2)
    run.push(0, finite=False)
    effects = run.push(1, finite=False)
    assert (run.version, only(Fold, effects), granted(effects)) == (0, [], [0, 1])
    run.push(0)
    assert only(Fold, run.push(1))


# The first m


def test_the_first_m_make_the_version_and_exactly_the_late_ones_are_called_off() -> None:
    run = Run(recipes.first_of(2), workers=4)
    run.push(3)
    effects = run.push(1)
    assert [member.worker for member in only(Fold, effects)[0].members] == [1, 3]
    assert granted(effects) == [1, 3]
    assert only(Cancel, effects) == [Cancel(0, number=1, version=1), Cancel(2, number=1, version=1)]
    assert [one.verdict for one in only(Discard, effects)] == [Verdict.CANCELLED] * 2


def test_a_push_that_crosses_its_cancellation_is_ignored_and_the_next_number_counts() -> None:
    run = Run(recipes.first_of(1), workers=2)
    run.push(0)
    assert run.push(1) == [Discard(1, 1, 1, Verdict.DUPLICATE, 0)]
    (fold,) = only(Fold, run.push(1))
    assert [(member.worker, member.number, member.staleness) for member in fold.members] == [(1, 2, 0)]


def test_the_data_of_crossed_pushes_goes_to_somebody_else_even_after_a_second_cancellation() -> None:
    run = Run(recipes.first_of(1), workers=2)
    run.lease(1, most=1, total=2)
    run.push(0)  # cancels number 1 of worker 1, which is on its way
    run.push(0)  # cancels number 2 as well
    assert run.push(1, batches=1) == [Discard(1, 1, 1, Verdict.DUPLICATE, 0)]
    assert run.push_number(1, 1, batches=1) == [Discard(1, 1, 1, Verdict.DUPLICATE, 0)]
    assert set(run.lease(0, most=2, total=2)) == {(0, 0), (0, 1)}


def test_data_of_an_abandoned_step_goes_to_somebody_else() -> None:
    run = Run(recipes.first_of(1), workers=2)
    (batch,) = run.lease(1)
    run.push(0)
    run.abandon(1, batches=1)
    assert run.lease(0)[0] == batch


def test_without_cancellation_late_work_is_discarded_when_it_comes_and_its_worker_starts_again() -> None:
    run = Run(recipes.first_of(1, cancel_late=False), workers=2)
    assert only(Cancel, run.push(0)) == []
    effects = run.push(1, samples=5)
    assert effects == [Discard(1, 1, 1, Verdict.STALE, 1, 5), Grant(1, 1, 1, Verdict.STALE, 1)]
    assert only(Fold, run.push(1))[0].members[0].staleness == 0


def test_when_fewer_than_m_are_left_they_are_enough() -> None:
    run = Run(recipes.first_of(3), workers=3)
    run.push(0)
    run.push(1)
    assert len(only(Fold, run.die(2))[0].members) == 2


def test_a_round_may_take_late_work_of_a_version_ago() -> None:
    late = Strategy(name="late", admit=Fresh(1), gather=Round(first=2), release=recipes.sync_sgd().release)
    run = Run(late)
    run.push(0)
    run.push(1)
    assert run.push(2) == []
    assert [member.staleness for member in only(Fold, run.push(0))[0].members] == [0, 1]


# Nobody waits


def test_async_folds_each_as_it_comes_with_its_true_staleness() -> None:
    run = Run(recipes.async_sgd())
    for _ in range(4):
        run.push(0)
    effects = run.push(1)
    (fold,) = only(Fold, effects)
    assert (fold.version, fold.members[0].computed_from, fold.members[0].staleness) == (5, 0, 4)
    assert fold.scale == pytest.approx(1 / 3)
    assert only(Grant, effects) == [Grant(1, 1, 5, Verdict.TAKEN, 4, freed_by_other=False)]


def test_ringmaster_discards_what_is_r_or_more_stale_and_restarts_its_worker() -> None:
    run = Run(recipes.ringmaster(2), workers=3)
    run.push(0)
    assert only(Fold, run.push(2))[0].members[0].staleness == 1
    effects = run.push(1)
    assert effects == [Discard(1, 1, 1, Verdict.STALE, 2, 32), Grant(1, 1, 2, Verdict.STALE, 2)]
    assert only(Fold, run.push(1))[0].members[0].staleness == 0


def test_rennala_counts_only_what_was_computed_at_this_version() -> None:
    run = Run(recipes.rennala(2))
    assert [type(one) for one in run.push(0)] == [Hold, Grant]
    assert [type(one) for one in run.push(0)] == [Hold, Fold, Grant]
    assert [type(one) for one in run.push(1)] == [Discard, Grant]
    run.push(1)
    effects = run.push(0)
    assert [member.staleness for member in only(Fold, effects)[0].members] == [0, 0]


def test_buffered_holds_each_contribution_and_folds_k() -> None:
    run = Run(recipes.buffered(3), workers=4)
    for worker in (2, 0):
        effects = run.push(worker)
        assert effects[0] == Hold(worker, 1, weight=1.0)
        assert granted(effects) == [worker], "nobody waits for the fold"
    effects = run.push(0)
    assert [type(one) for one in effects] == [Hold, Fold, Grant]
    fold = only(Fold, effects)[0]
    assert [(member.worker, member.number) for member in fold.members] == [(2, 1), (0, 1), (0, 2)]
    assert (fold.held, fold.total_weight, fold.scale) == (True, 3.0, pytest.approx(3 / 4))


def test_what_is_held_of_a_dead_worker_is_folded() -> None:
    run = Run(recipes.buffered(2))
    run.push(0)
    run.die(0)
    assert [member.worker for member in only(Fold, run.push(1))[0].members] == [0, 1]


# Bounded staleness


def test_bounded_staleness_of_zero_keeps_everybody_within_one_clock() -> None:
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


def test_the_death_of_the_slowest_frees_those_who_waited_for_it() -> None:
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


# Silence


def test_a_silent_worker_is_evicted_only_while_others_wait_for_it() -> None:
    run = Run(recipes.sync_sgd(), workers=2, silence_s=10.0)
    assert run.tick(1000.0) == [], "nobody waits"
    run.push(0)
    effects = run.tick(1000.0)
    assert effects[0] == Evict(1, 1, silent_s=1000.0)
    assert [type(one) for one in effects] == [Evict, Fold, Grant]


def test_silence_up_to_the_limit_is_allowed() -> None:
    run = Run(recipes.sync_sgd(), workers=2, silence_s=10.0)
    run.push(0)
    assert run.tick(10.0) == []
    run.lease(1)
    assert run.tick(20.0) == [], "it asked for data at 10 s"
    assert only(Evict, run.tick(20.5)) == [Evict(1, 1, silent_s=10.5)]


def test_a_wait_for_the_fold_is_no_silence() -> None:
    run = Run(recipes.sync_sgd(), workers=2, silence_s=10.0)
    run.push(0)
    run.now_s = 9.0
    run.push(1)  # worker 0, last heard at 0 s, goes on only now
    run.push(1)
    assert run.tick(12.0) == []
    assert only(Evict, run.tick(19.5)) == [Evict(0, 1, silent_s=10.5)]


def test_nobody_is_evicted_for_being_silent_ahead_of_the_slowest() -> None:
    run = Run(recipes.bounded_staleness(1), silence_s=10.0)
    run.push(1)
    run.now_s = 8.0
    run.push(0)
    run.push(0)
    run.lease(2)
    assert run.tick(11.0) == [], "0 waits for 2, not for 1"
    assert [one.worker for one in only(Evict, run.tick(18.5))] == [2]


def test_all_who_are_silent_are_evicted_together() -> None:
    run = Run(recipes.sync_sgd(), silence_s=10.0)
    run.push(1)
    effects = run.tick(11.0)
    assert [one.worker for one in only(Evict, effects)] == [0, 2]
    assert [type(one) for one in effects] == [Evict, Evict, Fold, Grant]


def test_an_asynchronous_worker_may_be_silent_for_ever() -> None:
    run = Run(recipes.async_sgd(), workers=2, silence_s=10.0)
    run.push(0)
    assert run.tick(1e9) == []


# Exactly once


def test_a_repeated_push_is_ignored() -> None:
    run = Run(recipes.async_sgd())
    run.push(0)
    assert run.push_number(0, 1) == [Discard(0, 1, 1, Verdict.DUPLICATE, 0)]
    assert run.version == 1


def test_a_push_of_a_worker_that_is_gone_is_fenced() -> None:
    run = Run(recipes.async_sgd())
    run.push(0)
    run.die(0)
    assert run.push_number(0, 1) == [Discard(0, 1, 1, Verdict.FENCED, 0)]
    assert run.push_number(0, 2) == [Discard(0, 1, 2, Verdict.FENCED, 0)]
    assert run.version == 1


def test_a_push_of_an_evicted_worker_is_fenced() -> None:
    run = Run(recipes.sync_sgd(), workers=2, silence_s=10.0)
    run.push(0)
    run.tick(11.0)
    assert run.push(1) == [Discard(1, 1, 1, Verdict.FENCED, 0)]


def test_a_newer_incarnation_fences_the_older_one() -> None:
    run = Run(recipes.async_sgd())
    run.join(0)
    old = Pushed(0, 1, 1, 1, 32, 0)
    assert run.sequencer.receive(old, 0.0) == [Discard(0, 1, 1, Verdict.FENCED, 0)]
    assert only(Fold, run.push(0))[0].members[0].incarnation == 2
    assert run.sequencer.receive(Joined(0, 1), 0.0) == [Discard(0, 1, 0, Verdict.FENCED, 0)]
    assert run.sequencer.receive(Left(0, 1, died=True), 0.0) == []
    assert granted(run.push(0)) == [0], "the old one's end is not the new one's"


def test_a_push_with_a_number_far_ahead_is_refused() -> None:
    run = Run(recipes.async_sgd())
    assert [type(one) for one in run.push_number(0, 1000)] == [Discard]
    assert granted(run.push(0)) == [0]


# Data


def test_a_dead_workers_batches_are_visited_by_others() -> None:
    run = Run(recipes.async_sgd(), workers=2)
    lost = run.lease(0, most=2)
    run.die(0)
    rest = run.lease(1, most=10)
    assert set(lost) < set(rest)
    assert len(rest) == 6
    run.push(1, batches=6)
    assert (run.leases.done, run.leases.unvisited) == (6, 0)


def test_batches_of_a_worker_that_never_came_are_visited_by_others() -> None:
    run = Run(recipes.sync_sgd(), workers=1)
    leases = DataLeases(2, stealing=False)
    sequencer = Sequencer(recipes.sync_sgd(), 2, leases)
    sequencer.receive(Joined(0, 1), 0.0)
    sequencer.receive(Left(1, 1, died=True), 0.0)
    (leased,) = only(Leased, sequencer.receive(LeaseWanted(0, 1, 0, 4, 10), 0.0))
    assert sorted(leased.batches) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert run.leases.opened == 0


def test_a_batch_is_done_when_folded_and_skipped_when_it_was_not_finite() -> None:
    run = Run(recipes.buffered(2))
    run.lease(0, most=3)
    run.push(0, batches=1)
    assert (run.leases.done, run.leases.skipped) == (0, 0), "held, not folded"
    run.push(0, batches=1, finite=False)
    assert (run.leases.done, run.leases.skipped) == (0, 1)
    run.push(0, batches=1)
    assert (run.leases.done, run.leases.skipped) == (2, 1)


def test_a_stale_contributions_batches_are_given_out_again() -> None:
    run = Run(recipes.ringmaster(1), workers=2)
    (batch,) = run.lease(1)
    run.push(0)
    run.push(1, batches=1)
    assert run.leases.done == 0
    assert run.lease(0) == (batch,)


def test_batches_a_worker_will_not_use_go_to_somebody_else() -> None:
    run = Run(recipes.async_sgd(), workers=2)
    first, *rest = run.lease(0, most=3)
    event = LeaseWanted(0, 1, epoch=0, total=6, most=0, unused=2)
    assert run.sequencer.receive(event, 0.0) == [Leased(0, ())]
    assert set(rest) < set(run.lease(1, most=10))
    run.push(0, batches=1)
    assert run.leases.done == 1, first


def test_what_the_fabric_folded_itself_is_counted() -> None:
    run = Run(recipes.hogwild(), workers=2)
    run.lease(0, most=2)
    assert run.sequencer.receive(Reported(0, 1, versions=3, batches=2), 0.0) == []
    assert (run.version, run.leases.done) == (3, 2)
    run.join(0)
    assert run.sequencer.receive(Reported(0, 1, versions=3, batches=2), 0.0) == []
    assert (run.version, run.leases.done) == (3, 2), "fenced"
    assert run.join(1) == [Grant(1, 0, version=3, verdict=Verdict.TAKEN, staleness=0)]


# Weights and rates


@pytest.mark.parametrize(
    ("weigh", "staleness", "workers", "samples", "expected"),
    [
        (Equal(), 0, 4, 8, 1.0),
        (Equal(), 9, 4, 8, 1.0),
        (Inverse(), 0, 4, 8, 1.0),  # 1 / max(tau, 1)
        (Inverse(), 1, 4, 8, 1.0),
        (Inverse(), 4, 4, 8, 1 / 4),
        (Polynomial(), 0, 4, 8, 1.0),  # (1 + tau)^-a
        (Polynomial(), 3, 4, 8, 1 / 2),
        (Polynomial(a=2.0), 2, 4, 8, 1 / 9),
        (Polynomial(a=0), 7, 4, 8, 1.0),
        (Hinge(), 0, 4, 8, 1.0),  # 1 up to b, then 1 / (a (tau - b) + 1)
        (Hinge(), 4, 4, 8, 1.0),
        (Hinge(), 5, 4, 8, 1 / 11),
        (Hinge(a=2.0, b=1), 3, 4, 8, 1 / 5),
        (DelayAdaptive(), 0, 4, 8, 1.0),  # min(1, N / tau)
        (DelayAdaptive(), 4, 4, 8, 1.0),
        (DelayAdaptive(), 5, 4, 8, 4 / 5),
        (DelayAdaptive(), 16, 4, 8, 1 / 4),
        (BySamples(), 0, 4, 8, 8.0),
        (BySamples(), 5, 4, 96, 96.0),
        (BySamples(), 0, 4, 0, 1.0),
    ],
)
def test_weights(weigh: Weigh, staleness: int, workers: int, samples: int, expected: float) -> None:
    assert weigh.weight(staleness, workers, samples) == pytest.approx(expected)


def test_samples_share_out_a_fold_and_do_not_scale_it() -> None:
    run = Run(recipes.local_sgd(recipes.local.Seconds(0.3)), workers=2)
    run.push(0, samples=300)
    (fold,) = only(Fold, run.push(1, samples=100))
    assert [member.share for member in fold.members] == [0.75, 0.25]
    assert fold.scale == 1.0


def test_staleness_weights_scale_the_step_and_share_out_the_fold() -> None:
    run = Run(recipes.buffered(2, weigh="polynomial"), workers=4)
    run.push(0)
    run.push(0)
    run.push(0)
    (fold,) = only(Fold, run.push(1))
    fresh, stale = 1.0, 2**-0.5
    assert fold.total_weight == pytest.approx(fresh + stale)
    assert [member.share for member in fold.members] == pytest.approx(
        [fresh / (fresh + stale), stale / (fresh + stale)]
    )
    assert fold.scale == pytest.approx(2 / 4 * (fresh + stale) / 2)


def test_a_weighted_async_step_is_smaller_by_its_weight() -> None:
    run = Run(recipes.async_sgd(weigh="inverse"), workers=2)
    for _ in range(4):
        run.push(0)
    (fold,) = only(Fold, run.push(1))
    assert fold.members[0].share == 1.0
    assert fold.scale == pytest.approx(1 / 2 * 1 / 4)


@pytest.mark.parametrize(("folded", "workers", "expected"), [(1, 4, 0.25), (3, 4, 0.75), (4, 4, 1.0), (9, 4, 1.0)])
def test_a_fold_of_k_of_n_moves_by_k_nths_of_the_rate(folded: int, workers: int, expected: float) -> None:
    assert UserOptimizer().scale(folded, workers) == expected
    assert UserOptimizer(lr_scale="full").scale(folded, workers) == 1.0


def test_rates_are_shared_among_the_workers_the_run_was_asked_to_have() -> None:
    run = Run(recipes.async_sgd(), workers=4)
    run.die(3)
    assert only(Fold, run.push(0))[0].scale == 1 / 4
