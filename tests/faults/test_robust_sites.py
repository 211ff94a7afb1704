"""Robust folds of real sites: one of them is killed, the server is killed, or sites join over TCP."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path

import pytest
import torch

import plesio as ps
from support import remote
from support.sites import by_coordinate, by_hand, site

SLOW = partial(site, rounds=25, pause_s=0.05)
DEATH = [ps.Kill(2, after_s=0.2)]


@pytest.mark.thorough
def test_a_site_that_dies_is_missing_and_the_others_go_on(tmp_path: Path) -> None:
    run = ps.run(SLOW, ps.fedavg(combine="krum"), workers=6, faults=DEATH, runs=tmp_path, timeout_s=60)
    assert [one.left for one in run.workers].count("died") == 1
    assert run.version == 25
    assert ps.replay(run.folder, SLOW).identical


def test_a_death_that_leaves_too_few_ends_the_run_in_words() -> None:
    words = (
        r"version \d+: fedavg\(combine=krum\) needs contributions of at least 5 workers in a round, and this one has 4"
    )
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(SLOW, ps.fedavg(combine="krum"), workers=5, faults=DEATH, timeout_s=60)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["median", pytest.param("krum", marks=pytest.mark.slow)])
def test_a_server_that_is_killed_goes_on_and_nothing_is_lost(rule: str, tmp_path: Path) -> None:
    faults = [ps.Kill(None, after_s=at_s) for at_s in (0.5, 1.0)]
    run = ps.run(
        SLOW, ps.fedavg(combine=rule), workers=5, faults=faults, runs=tmp_path, durability="process", timeout_s=60
    )
    assert run.version == 25
    assert 1 <= len(run.incidents) <= 2
    assert ps.replay(run.folder, SLOW).identical


def test_sites_that_join_over_tcp_make_what_a_plain_loop_makes() -> None:
    median = by_coordinate(statistics.median)
    run = remote.run(site, ps.fedavg(combine="median"), workers=3)
    for name, value in by_hand(median, 3).items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-6, atol=1e-6)
