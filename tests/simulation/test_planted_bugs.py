"""The test of the test: every planted bug is found, by the invariant it breaks."""

from __future__ import annotations

import pytest

from support.long_forms import but_slow
from torture import BUGS, PHASE_BUGS, REBIRTH_BUGS, REBORN_ROW_BUGS, ROW_BUGS, run_seed

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
    "what was begun before the answer counts as begun after it": ("staleness is the true one",),
    "a checkpoint is taken in the middle of an event": ("a checkpoint is whole", "done is what is in the parameters"),
    "incarnations share a slot": ("what is folded is what the order names",),
    "waiting counts as silence": ("only the silent are evicted",),
    "answers do not wait until they are durable": ("the answer waits until it is durable",),
    "what is not finite is folded": ("the parameters stay finite",),
    "a table server steps rows before it serves them": ("rows are as they were when the order served them",),
    "rows step twice": ("rows step once",),
    "a new process has what the one before was served": ("rows are as they were", "rows step once"),
    "keys are read when rows step": ("rows are as they were", "rows step once"),
    "weights of gradients are forgotten": ("rows are as they were", "rows step once"),
    "a table server goes on with the rows of others": ("rows come back as they were kept",),
    "a checkpoint does not wait for a table server": ("rows come back as they were kept",),
    "rows are read when the first table server has laid them": ("rows are as they were when the order served them",),
    "gradients are cleared before rows are served": ("rows are as they were", "rows step once"),
    "rows ahead do not wait for the fold": ("rows ahead come after the fold",),
    "rows are served twice": ("a request is served once",),
    "a seat is taken while its slot is read": ("a slot is its contribution's until that is folded",),
    "another phase does not wait for everybody": ("the core stopped",),
    "what is pending is dropped at a switch": (
        "what is answered as taken is in the parameters",
        "what is folded is what the order names",
    ),
    "clocks go on over a switch": ("the core stopped", "nobody is more than"),
    "the phase is missing from the checkpoint": ("a checkpoint is of the phase that holds",),
    "a switch is not done again": ("memory is of the phase that holds",),
    "acknowledged before copied": (
        "who goes on does so from the newest version",
        "what is folded is what the order names",
        "versions are dense",
    ),
    "log without mail": ("what came is heard once",),
    "a number is used for two spares": ("one takes over",),
    "header before state": (
        "a contribution is folded once",
        "versions are dense",
        "what is folded is what the order names",
    ),
    "under way before it lies twice": ("versions are dense", "what is folded is what the order names"),
    "half an effect is not undone": ("a contribution is folded once", "versions are dense"),
    "answer not repeated": ("what is decided is told",),
    "time is read anew": ("a reborn server does as the dead one did", "only the silent are evicted"),
    "a checkpoint has rows of what is computed again": ("a checkpoint has no rows that stepped",),
}


def found(name: str) -> str | None:
    """The first promise seen broken with that bug planted."""
    tables, deaths = name in ROW_BUGS + REBORN_ROW_BUGS, name in REBIRTH_BUGS + REBORN_ROW_BUGS
    kind = {"tables": tables, "deaths": deaths, "switches": name in PHASE_BUGS}
    failures = (run_seed(seed, name, **kind).failure for seed in range(SEEDS))
    return next((failure for failure in failures if failure is not None), None)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", but_slow(BUGS, [*BUGS][::3]))
def test_a_planted_bug_is_found(name: str) -> None:
    failure = found(name)
    assert failure is not None, f"{SEEDS} seeds do not see it"
    assert failure.startswith(BREAKS.get(name, failure))


def test_planted_bugs_are_many_and_distinct() -> None:
    assert len(BUGS) >= 20
    assert len(set(BUGS.values())) == len(BUGS)
    assert set(BREAKS) <= set(BUGS)
