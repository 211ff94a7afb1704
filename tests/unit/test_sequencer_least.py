"""Rounds that take a least number of workers, and rounds that somebody looks at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plesio as ps
from plesio.core.events import (
    Discard,
    Fold,
    GivenUp,
    RoundBegins,
    RoundEnded,
    Short,
    Verdict,
)
from plesio.core.sequencer import NEVER_S, Sequencer
from plesio.strategy import Strategy
from support.long_forms import examples
from support.sequencing import Run, granted, only

SILENCE_S = 300.0


def fewer(run: Run, workers: int) -> None:
    """Those with the highest numbers die."""
    for worker in range(workers, 3):
        run.die(worker)


def folded(effects: list[object]) -> list[int]:
    (fold,) = [one for one in effects if isinstance(one, Fold)]
    return [one.worker for one in fold.members]


# A least number


def test_one_of_three_waits_for_a_second_and_says_so_once() -> None:
    run = Run(ps.fedavg(clients_min=2))
    fewer(run, 1)
    assert only(Short, run.push(0)) == [Short(1, 2)]
    assert run.tick(10.0) == []
    run.join(1)
    assert folded(run.push(1)) == [0, 1]
    assert run.sequencer.grace_until_s == NEVER_S


def test_two_of_three_go_on_without_the_third() -> None:
    run = Run(ps.fedavg(clients_min=2))
    run.push(0)
    run.push(1)
    assert folded(run.die(2)) == [0, 1]


def test_who_waits_in_vain_is_over_when_a_worker_may_be_silent_no_longer() -> None:
    run = Run(ps.fedavg(clients_min=2))
    fewer(run, 1)
    run.now_s = 5.0
    run.push(0)
    assert only(Short, run.tick(5.0 + SILENCE_S - 0.1)) == []
    assert only(Short, run.tick(5.0 + SILENCE_S)) == [Short(1, 2, over=True)]


def test_a_site_that_comes_and_dies_again_does_not_make_the_wait_longer() -> None:
    run = Run(ps.fedavg(clients_min=2))
    fewer(run, 1)
    run.push(0)
    run.tick(200.0)
    run.join(1)
    assert only(Short, run.tick(SILENCE_S)) == [], "somebody works on it"
    assert only(Short, run.die(1)) == [Short(1, 2, over=True)]


def test_that_too_many_have_finished_is_seen_at_once() -> None:
    run = Run(ps.fedavg(clients_min=2))
    run.finish(1)
    run.finish(2)
    assert only(Short, run.push(0)) == [Short(1, 2, hopeless=True)]


def test_a_run_that_ends_lets_go_of_those_who_wait() -> None:
    run = Run(ps.fedavg(clients_min=2))
    fewer(run, 1)
    run.push(0)
    effects = run.tell(GivenUp())
    assert granted(effects) == [0]
    assert [one.verdict for one in only(Discard, effects)] == [Verdict.STALE]
    assert run.version == 0
    assert granted(run.push(0)) == [0], "nor does it wait again"


@pytest.mark.parametrize("counts", [{"finite": False}, {"steps": 0}])
def test_what_does_not_count_makes_no_version(counts: dict[str, int]) -> None:
    run = Run(ps.fedavg(clients_min=2))
    run.push(0)
    run.push(1, **counts)
    assert only(Short, run.push(2, **counts)) == [Short(1, 2)]


def test_a_round_in_which_nothing_counts_is_over() -> None:
    run = Run(ps.fedavg(clients_min=2))
    run.push(0, steps=0)
    run.push(1, steps=0)
    assert granted(run.push(2, steps=0)) == [0, 1, 2]
    assert run.version == 0


# Wanted, and a deadline

WANTED = ps.fedavg(clients_min=2, clients_wanted=3, deadline_s=60.0)


def test_a_version_is_made_as_soon_as_those_wanted_have_come() -> None:
    run = Run(ps.fedavg(clients_wanted=2, deadline_s=60.0))
    run.push(2)
    assert folded(run.push(0)) == [0, 2]
    (late,) = only(Fold, run.push(1) + run.push(0))
    assert [(one.worker, one.staleness) for one in late.members] == [(0, 0), (1, 1)]


def test_who_is_away_is_waited_for_until_the_deadline() -> None:
    run = Run(WANTED)
    fewer(run, 2)
    run.now_s = 7.0
    assert run.push(0) == []
    run.now_s = 9.0
    assert run.push(1) == []
    assert run.sequencer.grace_until_s == 67.0
    assert folded(run.tick(67.0)) == [0, 1]


def test_after_the_deadline_a_round_goes_on_with_the_least_number() -> None:
    run = Run(WANTED)
    run.push(0)
    assert run.tick(60.0) == [], "others are at work"
    assert folded(run.push(1)) == [0, 1]
    run.push(0)
    assert run.sequencer.grace_until_s == 120.0, "each round has a deadline of its own"


def test_too_few_at_the_deadline_is_said_when_nobody_is_at_work() -> None:
    run = Run(WANTED)
    fewer(run, 1)
    assert only(Short, run.push(0)) == [Short(1, 2)]
    run.join(2)
    assert folded(run.push(2)) == [0, 2], "its deadline is over"


# Rounds that are looked at


def looked_at(strategy: Strategy, workers: int = 3) -> Run:
    run = Run(strategy, workers)
    assert run.tell(RoundBegins()) == []
    return run


def all_push(run: Run, workers: int = 3) -> list[object]:
    effects: list[object] = []
    for worker in range(workers):
        effects = [*run.push(worker)]
    return effects


def test_nobody_goes_on_before_the_next_round_begins() -> None:
    run = looked_at(ps.fedavg())
    effects = all_push(run)
    (ended,) = [one for one in effects if isinstance(one, RoundEnded)]
    assert (ended.version, [one.worker for one in ended.members], ended.per_round) == (1, [0, 1, 2], None)
    assert granted(effects) == []  # type: ignore[arg-type]
    run.die(1)
    run.join(1)
    run.die(2)
    assert granted(run.tell(RoundBegins())) == [0, 1]
    run.push(0)
    assert folded([*run.push(1)]) == [0, 1], "nobody waits for the dead one"


def test_late_work_comes_while_a_round_is_looked_at() -> None:
    run = looked_at(ps.fedavg(clients_wanted=2, deadline_s=60.0))
    run.push(0)
    assert folded([*run.push(1)]) == [0, 1]
    assert run.push(2) == []
    assert granted(run.tell(RoundBegins())) == [0, 1]
    assert folded([*run.push(0)]) == [0, 2]


def test_a_choice_holds_from_the_next_round_and_is_kept() -> None:
    run = looked_at(ps.fedavg(), workers=1)
    run.lease(0, epoch=0, total=2, most=2)
    run.push(0, batches=2)
    run.tell(RoundBegins((4, 5, 6)))
    run.tell(RoundBegins())
    assert run.leases.choices == [(1, (4, 5, 6))]
    kept = Sequencer.restore(ps.fedavg(), 1, run.sequencer.state())
    assert kept.leases.choices == run.leases.choices
    run.tell(RoundBegins(()))
    assert run.leases.choices == [(1, (4, 5, 6)), (1, ())]


# Whatever happens


MOVES: list[Callable[[Run, int], object]] = [
    lambda run, worker: run.push(worker) if _computes(run, worker) else None,
    lambda run, worker: run.push(worker, finite=False) if _computes(run, worker) else None,
    lambda run, worker: run.push(worker, steps=0) if _computes(run, worker) else None,
    lambda run, worker: run.die(worker),
    lambda run, worker: run.join(worker) if worker not in run.sequencer.members.seats else None,
    lambda run, worker: run.tick(run.now_s + 20.0 * worker),
    lambda run, worker: run.tell(RoundBegins()),
]


def _computes(run: Run, worker: int) -> bool:
    seat = run.sequencer.members.seats.get(worker)
    return seat is not None and seat.waiting is None


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(range(len(MOVES))), st.integers(0, 3)), max_size=60), st.booleans())
def test_every_version_has_its_least_number_and_every_wait_an_end(moves: list[tuple[int, int]], looks: bool) -> None:
    run = Run(ps.fedavg(clients_min=2, clients_wanted=3, deadline_s=30.0), workers=4, silence_s=50.0)
    made: list[Fold] = []
    tell, over = run.tell, False

    def noted(event: object) -> list[object]:
        nonlocal over
        effects = tell(event)  # type: ignore[arg-type]
        made.extend(one for one in effects if isinstance(one, Fold))
        over = over or any(isinstance(one, Short) and one.over for one in effects)
        members = run.sequencer.members
        if members.seats and members.waiting == len(members.seats) and run.sequencer.held is None and not over:
            assert run.sequencer.grace_until_s < NEVER_S, "who waits has a deadline"
        return effects  # type: ignore[return-value]

    run.tell = noted  # type: ignore[method-assign, assignment]
    for kind, worker in moves:
        if kind != len(MOVES) - 1 or looks:
            MOVES[kind](run, worker)
    assert all(len(one.members) >= 2 for one in made)
    assert [one.version for one in made] == [*range(1, run.version + 1)]
