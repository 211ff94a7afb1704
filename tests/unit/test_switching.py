"""Another strategy in flight: when grants are held, what becomes of what is pending, and that the promises hold all the while.

`support.referee` knows the promises of each phase, and of a run that is drained for the next.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.events import Discard, Evict, Fold, Grant, Joined, Scaled, Switch, Switched, Verdict
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy
from plesio.strategy.recipes import (
    async_sgd,
    bounded_staleness,
    buffered,
    first_of,
    local_sgd,
    phases,
    quorum,
    sync_sgd,
)
from support.cluster import ACTIONS, play, random_actions
from support.long_forms import examples
from support.sequencing import Run, granted, only

KINDS = [
    sync_sgd(), async_sgd(), bounded_staleness(1), local_sgd(4), buffered(3), first_of(2), quorum(2, 1.0, 3)
]  # fmt: skip
SWITCHED = [*ACTIONS, "switch", "switch"]
STALE, TAKEN = Verdict.STALE, Verdict.TAKEN


def drained(first: Strategy, then: Strategy, workers: int = 3) -> Run:
    """A run that was just asked to go over to another strategy."""
    run = Run(phases(first, then), workers)
    assert run.tell(Switched(1)) == []
    return run


def test_a_declared_phase_begins_with_its_version_where_all_wait_for_a_fold() -> None:
    run = Run(phases(sync_sgd(), (2, async_sgd())))
    for number in (1, 2):
        assert [run.push(worker) for worker in (0, 1)] == [[], []]
        effects = run.push(2)
        assert only(Fold, effects)[0].version == number
        assert len(only(Switch, effects)) == number - 1
        assert {(one.worker, one.version) for one in only(Grant, effects)} == {(one, number) for one in range(3)}
    assert only(Fold, run.push(0))[0].scale == pytest.approx(1 / 3), "each makes a version, by its share of the rate"


def test_what_is_under_way_is_folded_before_a_declared_phase_begins() -> None:
    run = Run(phases(async_sgd(), (2, sync_sgd())))
    assert granted(run.push(0)) == [0]
    assert granted(run.push(0)) == []
    assert granted(run.push(1)) == []
    effects = run.push(2)
    assert [type(one) for one in effects] == [Fold, Switch, Grant, Grant, Grant]
    assert run.version == 4
    assert [(one.number, one.staleness) for one in only(Grant, effects)] == [(2, 0), (1, 2), (1, 3)]


def test_the_time_that_a_drain_takes_is_told() -> None:
    run = Run(phases(async_sgd(), sync_sgd()))
    run.now_s = 3.0
    run.tell(Switched(1))
    run.now_s = 3.5
    assert [only(Switch, run.push(worker)) for worker in range(3)] == [[], [], [Switch(1, 0.5)]]


def test_a_buffer_is_folded_as_full_as_it_is() -> None:
    run = drained(buffered(3, weigh="polynomial"), sync_sgd(), workers=2)
    run.push(0)
    (fold,) = only(Fold, run.push(1))
    assert [one.share for one in fold.members] == [0.5, 0.5]
    assert fold.scale == 1.0
    assert fold.held


def test_a_round_ends_with_those_that_come() -> None:
    run = drained(quorum(2, grace_s=9.0), async_sgd())
    assert [run.push(worker) for worker in (0, 1)] == [[], []]
    assert [type(one) for one in run.push(2)] == [Fold, Switch, Grant, Grant, Grant]
    assert run.sequencer.grace_until_s == float("inf")


def test_nobody_is_called_off_and_who_is_late_has_its_data_leased_again() -> None:
    run = drained(first_of(2), async_sgd())
    assert run.lease(2) == ((0, 2),)
    run.push(0)
    assert [type(one) for one in run.push(1)] == [Fold]
    effects = run.push(2, batches=1)
    assert only(Discard, effects)[0].verdict is STALE
    assert [one.verdict for one in only(Grant, effects)] == [TAKEN, TAKEN, STALE]
    assert run.lease(0) == ((0, 2),)


def test_the_last_one_under_way_may_die() -> None:
    run = drained(async_sgd(), sync_sgd())
    run.push(0), run.push(1)
    effects = run.die(2)
    assert [type(one) for one in effects] == [Switch, Grant, Grant]
    assert run.push(0) == []
    assert granted(run.push(1)) == [0, 1]


def test_one_that_waits_may_die_and_what_it_sent_counts() -> None:
    run = drained(sync_sgd(), async_sgd())
    run.push(0), run.die(0), run.push(1)
    effects = run.push(2)
    assert [one.worker for one in only(Fold, effects)[0].members] == [0, 1, 2]
    assert granted(effects) == [1, 2]


def test_all_may_die() -> None:
    run = drained(sync_sgd(), async_sgd())
    run.push(0)
    assert [type(one) for worker in range(3) for one in run.die(worker)] == [Fold, Switch]
    assert granted(run.join(1)) == [1]
    assert only(Fold, run.push(1))[0].version == 2


def test_who_joins_begins_with_the_next_phase() -> None:
    run = Run(phases(async_sgd(), sync_sgd()), workers=2)
    run.tell(Switched(1))
    run.push(0)
    assert run.tell(Joined(2, 1)) == []
    effects = run.push(1)
    assert [(one.worker, one.number, one.version) for one in only(Grant, effects)] == [(0, 1, 2), (1, 1, 2), (2, 0, 2)]
    run.push(0), run.push(1)
    run.incarnations[2] = 1
    assert granted(run.push(2)) == [0, 1, 2]


def test_who_is_silent_while_a_run_is_drained_is_evicted() -> None:
    run = drained(async_sgd(), sync_sgd())
    run.tick(400.0)
    assert run.sequencer.waited_for == []
    run.push(0), run.push(1)
    assert run.sequencer.waited_for == [2]
    assert [type(one) for one in run.tick(800.0)] == [Evict, Switch, Grant, Grant]


def test_a_run_may_be_scaled_while_it_is_drained() -> None:
    run = drained(sync_sgd(), async_sgd())
    run.tell(Scaled(4))
    for worker in range(3):
        run.push(worker)
    assert only(Fold, run.push(0))[0].scale == 0.25


def test_the_phase_that_a_run_is_in_needs_no_drain() -> None:
    run = Run(phases(async_sgd(), sync_sgd()))
    assert run.tell(Switched(0)) == []
    assert granted(run.push(0)) == [0]


def test_the_phase_that_was_asked_for_last_counts() -> None:
    run = Run(phases(async_sgd(), sync_sgd(), bounded_staleness(0)))
    run.tell(Switched(1)), run.tell(Switched(0)), run.push(0), run.push(1)
    assert [type(one) for one in run.push(2)] == [Fold, Grant, Grant, Grant], "the same: nothing is laid out anew"
    run.tell(Switched(1)), run.tell(Switched(2)), run.push(0), run.push(1)
    assert only(Switch, run.push(2)) == [Switch(2, 0.0)]


def test_there_must_be_such_a_phase() -> None:
    with pytest.raises(AssertionError, match="such a phase"):
        Run(phases(async_sgd(), sync_sgd())).tell(Switched(2))


def test_fast_workers_take_the_data_of_others_only_where_nobody_keeps_step() -> None:
    run = Run(phases(sync_sgd(), (1, async_sgd()), (4, sync_sgd())))
    run.sequencer.stealing = True
    assert run.lease(0, most=9) == ((0, 0), (0, 3))
    for worker in range(3):
        run.push(worker, batches=2)
    assert run.lease(0, most=1) == ((0, 1),)
    for worker in (0, 1, 2, 0, 1):
        run.push(worker)
    assert run.sequencer.phases.strategy == sync_sgd()
    assert run.lease(0, most=9) == ()


def test_a_run_goes_on_from_a_checkpoint_in_the_phase_that_it_was_in() -> None:
    strategy = phases(sync_sgd(), (1, async_sgd()), (3, sync_sgd()))
    run = Run(strategy)
    for worker in range(3):
        run.push(worker)
    again = Sequencer.restore(strategy, 3, run.sequencer.state())
    assert again.phases.strategy == async_sgd()
    assert again.phases.due_at == 3


def shuffled(seed: int) -> Strategy:
    """All kinds of strategies in some order, half of them at a version."""
    rng = random.Random(seed)
    first, *others = rng.sample(KINDS, len(KINDS))
    versions = sorted(rng.sample(range(1, 200), len(others)))
    return phases(first, *((at, one) if rng.random() < 0.5 else one for at, one in zip(versions, others, strict=True)))


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99),
    workers=st.integers(1, 6),
    actions=st.lists(st.tuples(st.sampled_from(SWITCHED), st.integers(0, 5), st.integers(0, 15)), max_size=80),
)
def test_the_promises_hold_whatever_happens(seed: int, workers: int, actions: list[tuple[str, int, int]]) -> None:
    play(shuffled(seed), workers, actions)


@pytest.mark.parametrize(("runs", "switches"), [(40, 200), pytest.param(1500, 10_000, marks=pytest.mark.slow)])
def test_the_promises_hold_on_long_runs(runs: int, switches: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(runs):
        workers = 1 + seed % 6
        seen += play(shuffled(seed), workers, random_actions(seed, workers, 300, SWITCHED)).referee.seen
    assert seen["Switch"] >= switches
    assert min(seen["joined a drained run"], seen["switched while some worked on"], seen["Evict"]) >= switches / 10
