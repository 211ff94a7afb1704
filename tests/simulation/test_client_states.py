"""A client's state is what its last turn left that counts, whoever dies: in virtual time."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, LogNormal, Restart
from plesio.strategy import Strategy
from support.client_turns import check, states_of, train
from support.long_forms import but_slow
from support.runs import assert_replays, by_name

STRATEGIES = but_slow(
    [ps.fedavg(), ps.fedbuff(3), ps.fedasync(), ps.fedavg(3, late="drop")],
    {"fedbuff(k=3)", "fedavg(first=3, late=drop)"},
)
TIMES = st.floats(0.1, 4.0)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", STRATEGIES, ids=by_name)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deaths=st.lists(st.tuples(st.integers(0, 1), TIMES, st.booleans()), max_size=3), seed=st.integers(0, 99))
def test_a_state_counts_with_its_turn(strategy: Strategy, deaths: list[tuple[int, float, bool]], seed: int) -> None:
    faults: list[Crash | Restart] = []
    for worker in (0, 1):
        at_s = 0.0
        for _, after_s, back in (one for one in deaths if one[0] == worker):
            at_s += after_s
            faults.append(Crash(worker=worker, at_s=at_s))
            if not back:
                break
            at_s += 0.3
            faults.append(Restart(worker=worker, at_s=at_s))
    cluster = Cluster((Group(2, LogNormal(0.1, 0.5)), Group(1, Constant(0.2))), faults=tuple(faults))
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        task = partial(train, rounds=6, log=str(log))
        run = ps.run(task, strategy, workers=3, engine=ps.Simulated(cluster), runs=place, seed=seed)
        turns, _ = check(run.folder, log)
        assert turns >= 24


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", STRATEGIES, ids=by_name)
def test_a_resumed_run_goes_on_with_what_clients_kept(strategy: Strategy, tmp_path: Path) -> None:
    engine = ps.Simulated(Cluster((Group(2, LogNormal(0.1, 0.3)), Group(1, Constant(0.3)))))
    task = partial(train, rounds=8)
    one = partial(ps.run, task, strategy, workers=3, engine=engine)
    whole = one(runs=tmp_path / "whole")
    until = ps.Until(seconds=0.6 * whole.summary.wall_s)
    first = one(runs=tmp_path / "a", checkpoint=ps.Checkpoint(every_s=0.4), until=until)
    assert 0 < first.version < whole.version
    second = one(runs=tmp_path / "b", resume=first.folder)
    assert_replays(second, task)
    if strategy.gather.in_rounds:
        ours, theirs = states_of(second.folder), states_of(whole.folder)
        assert ours.keys() == theirs.keys()
        for client, one in ours.items():
            for name, value in one["own"].items():
                torch.testing.assert_close(value, theirs[client]["own"][name], rtol=1e-5, atol=1e-6)
