"""Who visits which batches when contributions are dropped or workers die."""

from __future__ import annotations

from plesio.core.events import Abandoned, Evict, Grant, Joined, Leased, LeaseWanted, Left, Reported, Scaled, Verdict
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.strategy import recipes
from support.sequencing import Run, only


def test_a_dead_workers_batches_are_visited_by_others() -> None:
    run = Run(recipes.async_sgd(), workers=2)
    lost = run.lease(0, most=2)
    run.die(0)
    rest = run.lease(1, most=10)
    assert set(lost) < set(rest)
    assert len(rest) == 6
    run.push(1, batches=6)
    assert (run.leases.done, run.leases.unvisited) == (6, 0)


def test_batches_of_a_frozen_worker_that_is_to_leave_are_for_whoever_finds_nothing_else() -> None:
    run = Run(recipes.async_sgd(), workers=2)
    held = run.lease(1, most=2)
    run.sequencer.receive(Scaled(1), 0.0)
    assert run.lease(0, most=10) == tuple(one for one in [(0, batch) for batch in range(6)] if one not in held)
    assert run.lease(0, most=10) == (), "it may be at its last step"
    run.now_s = 2.0
    effects = run.sequencer.receive(LeaseWanted(0, 1, 0, 6, 10), 2.0)
    assert only(Evict, effects) == [Evict(1, 1, 2.0)]
    assert only(Leased, effects)[0].batches == held


def test_batches_of_a_worker_that_never_came_are_visited_by_others() -> None:
    run = Run(recipes.sync_sgd(), workers=1)
    leases = DataLeases(2, stealing=False)
    sequencer = Sequencer(recipes.sync_sgd(), 2, leases)
    sequencer.receive(Joined(0, 1), 0.0)
    sequencer.receive(Left(1, 1, died=True), 0.0)
    (leased,) = only(Leased, sequencer.receive(LeaseWanted(0, 1, 0, 4, 10), 0.0))
    assert sorted(leased.batches) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert run.leases.opened == 0


def test_batches_are_done_when_folded_and_skipped_when_non_finite() -> None:
    run = Run(recipes.buffered(2))
    run.lease(0, most=3)
    run.push(0, batches=1)
    assert (run.leases.done, run.leases.skipped) == (0, 0), "held, not folded"
    run.push(0, batches=1, finite=False)
    assert (run.leases.done, run.leases.skipped) == (0, 1)
    run.push(0, batches=1)
    assert (run.leases.done, run.leases.skipped) == (2, 1)


def test_a_stale_contributions_batches_are_leased_again() -> None:
    run = Run(recipes.ringmaster(1), workers=2)
    (batch,) = run.lease(1)
    run.push(0)
    run.push(1, batches=1)
    assert run.leases.done == 0
    assert run.lease(0) == (batch,)


def test_unused_batches_are_leased_to_others() -> None:
    run = Run(recipes.async_sgd(), workers=2)
    first, *rest = run.lease(0, most=3)
    event = LeaseWanted(0, 1, epoch=0, total=6, most=0, unused=2)
    assert run.sequencer.receive(event, 0.0) == [Leased(0, (), epoch=1 / 6)]
    assert set(rest) < set(run.lease(1, most=10))
    run.push(0, batches=1)
    assert run.leases.done == 1, first


def test_an_older_incarnation_cannot_return_the_newers_data() -> None:
    run = Run(recipes.async_sgd(), workers=2)
    run.join(0)
    run.lease(0, most=2)
    late = (Abandoned(0, 1, batches=1), LeaseWanted(0, 1, epoch=0, total=6, most=1, unused=1))
    assert [run.sequencer.receive(event, 0.0) for event in late] == [[], []]
    run.push(0, batches=2)
    assert (run.leases.done, run.leases.unvisited) == (2, 4)
    run.die(0)
    late = (Abandoned(0, 2, batches=1), LeaseWanted(0, 2, epoch=0, total=6, most=1))
    assert [run.sequencer.receive(event, 0.0) for event in late] == [[], []]
    assert len(run.lease(1, most=10)) == 4


def test_reported_versions_are_counted() -> None:
    run = Run(recipes.hogwild(), workers=2)
    run.lease(0, most=2)
    assert run.tell(Reported(0, 1, versions=3, batches=2)) == []
    assert (run.version, run.leases.done) == (3, 2)
    run.join(0)
    assert run.tell(Reported(0, 1, versions=3, batches=2)) == []
    assert (run.version, run.leases.done) == (3, 2), "fenced"
    assert run.join(1) == [Grant(1, 0, version=3, verdict=Verdict.TAKEN, staleness=0)]
