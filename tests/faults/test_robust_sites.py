"""Robust folds of real sites: one of them is killed, the server is killed, or sites join over TCP."""

from __future__ import annotations

import random
import statistics
from functools import partial
from pathlib import Path

import pytest
import torch

import plesio as ps
from support import remote
from support.sites import ROUNDS, by_coordinate, by_hand, site


def test_a_site_that_dies_is_missing_and_the_others_go_on(tmp_path: Path) -> None:
    train = partial(site, dies=2)
    run = ps.run(train, ps.fedavg(combine="krum"), workers=6, runs=tmp_path, timeout_s=60)
    assert [one.left for one in run.workers].count("died") == 1
    assert run.version == ROUNDS
    assert ps.replay(run.folder, train).identical


def test_a_death_that_leaves_too_few_ends_the_run_in_words() -> None:
    words = r"version 3: fedavg\(combine=krum\) needs contributions of at least 5 workers in a round, and this one has 4"
    with pytest.raises(ps.StrategyError, match=words):
        ps.run(partial(site, dies=2), ps.fedavg(combine="krum"), workers=5, timeout_s=60)


@pytest.mark.parametrize("rule", ["median", "krum"])
def test_a_server_that_is_killed_goes_on_and_nothing_is_lost(rule: str, tmp_path: Path) -> None:
    faults = [ps.Kill(None, after_s=at_s) for at_s in sorted(random.Random(rule).uniform(0.05, 0.5) for _ in range(2))]
    train = partial(site, rounds=30, pause_s=0.02)
    run = ps.run(
        train, ps.fedavg(combine=rule), workers=5, faults=faults, runs=tmp_path, durability="process", timeout_s=60
    )
    assert run.version == 30
    assert 1 <= len(run.incidents) <= 2
    assert ps.replay(run.folder, train).identical


def test_sites_that_join_over_tcp_make_what_a_plain_loop_makes() -> None:
    median = by_coordinate(statistics.median)
    run = remote.run(site, ps.fedavg(combine="median"), workers=3)
    for name, value in by_hand(median, 3).items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-6, atol=1e-6)
