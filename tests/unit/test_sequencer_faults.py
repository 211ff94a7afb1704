"""Silent workers, repeated messages and messages of the dead: one example each."""

from __future__ import annotations

import pytest

from plesio.core.events import Discard, Evict, Fold, Grant, Joined, Left, Pushed, Verdict
from plesio.strategy import recipes
from support.sequencing import Run, granted, only

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


def test_waiting_for_the_fold_is_no_silence() -> None:
    run = Run(recipes.sync_sgd(), workers=2, silence_s=10.0)
    run.push(0)
    run.now_s = 9.0
    run.push(1)  # worker 0, last heard at 0 s, goes on only now
    run.push(1)
    assert run.tick(12.0) == []
    assert only(Evict, run.tick(19.5)) == [Evict(0, 1, silent_s=10.5)]


def test_a_silent_worker_ahead_of_the_slowest_is_not_evicted() -> None:
    run = Run(recipes.bounded_staleness(1), silence_s=10.0)
    run.push(1)
    run.now_s = 8.0
    run.push(0)
    run.push(0)
    run.lease(2)
    assert run.tick(11.0) == [], "0 waits for 2, not for 1"
    assert [one.worker for one in only(Evict, run.tick(18.5))] == [2]


def test_all_silent_workers_are_evicted_together() -> None:
    run = Run(recipes.sync_sgd(), silence_s=10.0)
    run.push(1)
    effects = run.tick(11.0)
    assert [one.worker for one in only(Evict, effects)] == [0, 2]
    assert [type(one) for one in effects] == [Evict, Evict, Fold, Grant]


def test_an_asynchronous_worker_may_be_silent_forever() -> None:
    run = Run(recipes.async_sgd(), workers=2, silence_s=10.0)
    run.push(0)
    assert run.tick(1e9) == []
    run.now_s = 2e9
    run.push(0)
    assert run.tick(2e9) == [], "0 goes on"


@pytest.mark.parametrize("name", ["async_sgd", "hogwild", "sync_sgd", "bounded_staleness", "buffered", "allreduce"])
def test_silent_workers_are_evicted_when_all_others_finished(name: str) -> None:
    """Nobody else can do their batches; the run ends and counts them."""
    run = Run(recipes.recipe(name), silence_s=10.0)
    run.lease(1, most=2)
    run.finish(0)
    run.now_s = 100.0
    run.lease(2)
    run.finish(2)
    assert run.tick(110.0) == [], "the others have only just finished"
    assert run.tick(110.5) == [Evict(1, 1, silent_s=110.5)]
    assert run.leases.unvisited == 6
    assert run.tick(1e9) == []


def test_a_silent_worker_is_not_evicted_while_another_goes_on() -> None:
    run = Run(recipes.async_sgd(), silence_s=10.0)
    run.finish(0)
    run.now_s = 95.0
    run.push(1)
    assert run.tick(100.0) == []
    assert run.tick(105.5) == [Evict(1, 1, silent_s=10.5), Evict(2, 1, silent_s=105.5)]


def test_a_silent_worker_is_not_evicted_because_others_died() -> None:
    run = Run(recipes.local_sgd(), silence_s=10.0)
    run.die(0)
    assert run.tick(1e9) == []


def test_a_rejoined_worker_has_not_finished() -> None:
    run = Run(recipes.async_sgd(), workers=2, silence_s=10.0)
    run.finish(0)
    run.join(0)
    assert run.tick(1e9) == []


def test_the_only_worker_of_a_run_may_be_silent_forever() -> None:
    run = Run(recipes.sync_sgd(), workers=1, silence_s=10.0)
    assert run.tick(1e9) == []
    run.join(0)
    assert run.tick(2e9) == [], "its older incarnation is nobody else"


# Exactly once


def test_a_repeated_push_is_ignored() -> None:
    run = Run(recipes.async_sgd())
    run.push(0)
    assert run.push_number(0, 1) == [Discard(0, 1, 1, Verdict.DUPLICATE, 0)]
    assert run.version == 1


def test_a_push_of_a_departed_worker_is_fenced() -> None:
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


def test_a_repeated_join_is_fenced_and_its_worker_keeps_its_seat() -> None:
    run = Run(recipes.async_sgd())
    run.push(0)
    assert run.sequencer.receive(Joined(0, 1), 0.0) == [Discard(0, 1, 0, Verdict.FENCED, 0)]
    assert granted(run.push(0)) == [0]


def test_a_push_with_a_number_far_ahead_is_refused() -> None:
    run = Run(recipes.async_sgd())
    assert [type(one) for one in run.push_number(0, 1000)] == [Discard]
    assert granted(run.push(0)) == [0]
