"""Servers that are killed outright, and whose spares go on: real processes, killed at random moments."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plesio as ps
from plesio.strategy import Strategy
from plesio.strategy.answers import TopK
from support.long_forms import but_slow
from support.replayed import chancy

EPOCHS, BATCHES = 6, 16
WENT_ON = re.compile(r"the server died at version (\d+) and went on after [\d.]+ s; no update lost")
STRATEGIES: dict[str, Strategy] = {
    "async": ps.async_sgd(),
    "sync": ps.sync_sgd(),
    "first": ps.first_of(2),
    "local": ps.local_sgd(every=3),
    "diloco": ps.diloco(h=3),
    "bounded": ps.bounded_staleness(3),
    "buffered": ps.buffered(2),
    "elastic": ps.elastic_averaging(every=3),
    "int8": ps.local_sgd(every=3, codec="int8"),
    "top-k": ps.diloco(h=3, codec=TopK(0.2)),
    "allreduce": ps.allreduce(),
}


def survived(strategy: Strategy, folder: Path, kills: int, seed: int, workers: int = 3, **more: Any) -> ps.Run:
    """A run whose server is killed so many times, in its first second or two."""
    at_s = sorted(random.Random(seed).uniform(0.05, 0.3 * kills) for _ in range(kills))
    faults = [ps.Kill(None, after_s=each) for each in at_s]
    train = partial(chancy, **{"epochs": EPOCHS, **more})
    run = ps.run(train, strategy, workers=workers, faults=faults, runs=folder, durability="process", timeout_s=60)
    assert not [one for one in run.incidents if not WENT_ON.fullmatch(one.what)]
    return run


def check_nothing_lost(run: ps.Run, train: Any) -> None:
    assert all(one.steps and one.left == "finished" for one in run.summary.workers)
    assert str(ps.replay(run.folder, train)) == f"bit-identical: {run.version:,} versions, all computed again"


@pytest.mark.parametrize("name", but_slow(list(STRATEGIES), {"async", "sync", "diloco", "buffered"}))
def test_a_server_that_is_killed_goes_on_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    run = survived(STRATEGIES[name], tmp_path, kills=3, seed=len(name))
    assert run.steps == EPOCHS * BATCHES or name == "first"  # which calls steps off, whose data is leased again
    assert 1 <= len(run.incidents) <= 3
    check_nothing_lost(run, partial(chancy, epochs=EPOCHS))
