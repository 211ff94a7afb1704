"""Another strategy in flight: the promises hold all the while. Examples are in `test_sequencer_stories.py`.

`support.referee` knows the promises of each phase, and of a run that is drained for the next.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.events import Switched
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy
from plesio.strategy.recipes import (
    async_sgd,
    bounded_staleness,
    buffered,
    decoupled,
    first_of,
    local_sgd,
    phases,
    quorum,
    sync_sgd,
)
from support.cluster import ACTIONS, play, random_actions
from support.long_forms import examples
from support.sequencing import Run

KINDS = [
    sync_sgd(), async_sgd(), bounded_staleness(1), local_sgd(4), buffered(3), first_of(2), quorum(2, 1.0, 3),
    decoupled(4, overlap=False),
]  # fmt: skip
SWITCHED = [*ACTIONS, "switch", "switch"]


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
    assert run.sequencer.switching.strategy == sync_sgd()
    assert run.lease(0, most=9) == ()


def test_a_run_goes_on_from_a_checkpoint_in_the_phase_that_it_was_in() -> None:
    strategy = phases(sync_sgd(), (1, async_sgd()), (3, sync_sgd()))
    run = Run(strategy)
    for worker in range(3):
        run.push(worker)
    again = Sequencer.restore(strategy, 3, run.sequencer.state())
    assert again.switching.strategy == async_sgd()
    assert again.switching.due_at == 3


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
