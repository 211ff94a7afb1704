"""A client's state is what its last turn left that counts: real processes, killed for real."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import plesio as ps
from plesio.strategy import Strategy
from support.client_turns import check, train
from support.long_forms import but_thorough


@pytest.mark.thorough
@pytest.mark.parametrize("dies", [pytest.param("before", marks=pytest.mark.thorough), "after"])
@pytest.mark.parametrize(
    "strategy",
    but_thorough([ps.fedavg(), ps.fedbuff(3), ps.fedasync()], {"fedavg"}, {"fedbuff(k=3)"}),
    ids=lambda one: str(one.name),
)
def test_a_turn_that_dies_leaves_what_was_there(strategy: Strategy, dies: str, tmp_path: Path) -> None:
    """`after`: its state is written, and its contribution is not sent."""
    log = tmp_path / "log"
    task = partial(train, rounds=8, log=str(log), rest_s=0.002, dies=dies)
    run = ps.run(task, strategy, workers=3, runs=tmp_path, timeout_s=30)
    assert [one.left for one in run.workers] == ["finished", "died", "finished"]
    assert run.folder is not None
    turns, became = check(run.folder, log)
    assert became["counts"] + became["left out"] == 32
    assert strategy.name == "fedavg" or not became["left out"]
    assert turns == became["counts"] + became["lost"]
    assert ps.replay(run.folder, task).identical


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", [ps.fedavg(), pytest.param(ps.fedbuff(3), marks=pytest.mark.slow)], ids=lambda one: str(one.name)
)
def test_a_server_that_dies_gives_each_state_its_place(strategy: Strategy, tmp_path: Path) -> None:
    log = tmp_path / "log"
    task = partial(train, rounds=8, log=str(log), rest_s=0.02)
    faults = [ps.Kill(None, after_s=at_s) for at_s in (0.3, 0.6)]
    run = ps.run(task, strategy, workers=3, runs=tmp_path, timeout_s=60, faults=faults, durability="process")
    assert len(run.incidents) == 2, "both of its deaths"
    assert run.folder is not None
    assert check(run.folder, log) == (32, {"counts": 32})
    assert ps.replay(run.folder, task).identical
