"""`decoupled` where workers and the server are killed outright: each batch is in a version, and a replay gives the same bits."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

import plesio as ps
from plesio.strategy import Strategy
from support.replayed import chancy

EPOCHS = 48
"""Longer than the last kill is away, also on an idle machine."""
STRATEGIES: dict[str, Strategy] = {
    "plain": ps.decoupled(every=3),
    "quorum and grace": ps.decoupled(every=3, quorum=3, grace_s=0.02),
    "in parts": ps.decoupled(every=6, fragments=2),
    "packed": ps.decoupled(every=3, codec="int8"),
}


def killed(strategy: Strategy, folder: Path, seed: int, server: int = 2, workers: int = 3) -> int:
    """Train with five workers of which so many are killed, and the server as often as told; how many were killed in time."""
    rng = random.Random(seed)
    kills = [ps.Kill(None, after_s=0.3 + 0.3 * rng.random() * (one + 1)) for one in range(server)]
    kills += [ps.Kill(worker, after_s=rng.uniform(0.2, 0.9)) for worker in rng.sample(range(5), workers)]
    train = partial(chancy, epochs=EPOCHS)
    run = ps.run(
        train, strategy, workers=5, faults=kills, runs=folder, durability="process", timeout_s=60, progress=False
    )
    assert run.batches_unvisited == 0, "lost"
    assert str(ps.replay(run.folder, train)) == f"bit-identical: {run.version:,} versions, all computed again"
    reborn = sum("went on after" in one.what for one in run.incidents)
    return reborn + [one.left for one in run.workers].count("died")


@pytest.mark.thorough
@pytest.mark.parametrize("name", STRATEGIES)
def test_of_workers_and_servers_that_are_killed_nothing_is_lost(name: str, tmp_path: Path) -> None:
    assert killed(STRATEGIES[name], tmp_path, seed=len(name)) > 1


@pytest.mark.slow
def test_of_200_kills_nothing_is_lost(tmp_path: Path) -> None:
    names, dead, runs = list(STRATEGIES), 0, 0
    while dead < 200:
        dead += killed(STRATEGIES[names[runs % len(names)]], tmp_path, seed=runs)
        runs += 1
        print(f"{runs} runs, {dead} killed")
