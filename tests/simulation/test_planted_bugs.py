"""The test of the test: every planted bug is found, by the invariant it breaks."""

from __future__ import annotations

import pytest

from support.long_forms import but_slow
from torture import BUGS, run_seed
from torture.world import Parts

SEEDS = 200
BREAKS = {
    "no dedupe": ("a contribution", "staleness is the true one", "a batch is visited once", "the core stopped"),
    "durable is said before the checkpoint is written": ("durable is what a crash leaves",),
    "the ledger is missing from the checkpoint": ("applied is what is in the parameters", "done is"),
    "a restart is not told": ("a restart is told",),
    "what is undone is counted in versions": ("what is undone is told to the last unit",),
    "the clock bound is off by one": ("nobody is more than",),
    "nobody is ever evicted": ("everybody gets on",),
    "the silent keep their seats": ("everybody gets on",),
    "hearts do not beat": ("a live worker keeps its lease", "everybody gets on"),
    "leased data is missing from the checkpoint": ("no batch is lost",),
    "the last few are never folded": ("the last to leave completes a fold",),
    "staleness is counted from the current version": ("staleness is the true one",),
    "a checkpoint is taken in the middle of an event": ("a checkpoint is whole", "done is what is in the parameters"),
    "incarnations share a slot": ("what is folded is what the order names",),
    "waiting counts as silence": ("only the silent are evicted",),
    "answers do not wait until they are durable": ("the answer waits until it is durable",),
    "what is not finite is folded": ("the parameters stay finite",),
}


def found(name: str) -> str | None:
    """The first promise seen broken with that bug planted."""
    failures = (run_seed(seed, name).failure for seed in range(SEEDS))
    return next((failure for failure in failures if failure is not None), None)


@pytest.mark.parametrize("name", but_slow(BUGS, [*BUGS][::3]))
def test_a_planted_bug_is_found(name: str) -> None:
    failure = found(name)
    assert failure is not None, f"{SEEDS} seeds do not see it"
    assert failure.startswith(BREAKS.get(name, failure))


def test_planted_bugs_are_many_and_distinct() -> None:
    assert len(BUGS) >= 20
    assert len(set(BUGS.values())) == len(BUGS)
    assert set(BREAKS) <= set(BUGS)


def test_the_real_parts_have_no_planted_bug() -> None:
    real = Parts()
    for parts in BUGS.values():
        assert parts != real
    assert Parts() == real
    assert {part.__module__.rpartition(".")[2] for part in (real.sequencer, real.service, real.worker_session)} == {
        "sequencer",
        "service",
        "session",
    }
