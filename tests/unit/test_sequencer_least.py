"""Rounds that take a least number of workers, and rounds that somebody looks at."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

import plesio as ps
from plesio.core.events import Fold, RoundBegins, Short
from plesio.core.sequencer import NEVER_S, Sequencer
from support.long_forms import examples
from support.sequencing import Run


def test_a_choice_holds_from_the_next_round_and_is_kept() -> None:
    run = Run(ps.fedavg(), workers=1)
    run.tell(RoundBegins())
    run.lease(0, epoch=0, total=2, most=2)
    run.push(0, batches=2)
    run.tell(RoundBegins((4, 5, 6)))
    run.tell(RoundBegins())
    assert run.leases.choices == [(1, (4, 5, 6))]
    kept = Sequencer.restore(ps.fedavg(), 1, run.sequencer.state())
    assert kept.leases.choices == run.leases.choices
    run.tell(RoundBegins(()))
    assert run.leases.choices == [(1, (4, 5, 6)), (1, ())]


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
