"""Another strategy in flight, among real processes that die, come late, stop, and are on other hosts."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.core.events import Left, Switched
from plesio.errors import ConfigurationError
from plesio.launch.job import Live
from plesio.protocol.journal import read_journal
from plesio.server.checkpoints import latest
from support import remote
from support.loops import data, mlp
from support.processes import called
from support.replayed import chancy

ALL = ps.phases(
    ps.sync_sgd(),
    (6, ps.local_sgd(2)),
    (10, ps.first_of(2)),
    (20, ps.async_sgd()),
    (40, ps.diloco(2, codec="int8")),
    (45, ps.bounded_staleness(2)),
)
BY_HAND = ps.phases(ps.async_sgd(), ps.local_sgd(2), ps.sync_sgd())


def said(run: ps.Run) -> list[str]:
    return [one.what for one in run.incidents if one.what.startswith("switched")]


def events(run: ps.Run) -> list[Any]:
    return [one.event for one in read_journal(run.folder).decisions()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "hidden"),
    [pytest.param("adam", 16, marks=pytest.mark.slow, id="copied"), pytest.param("sgd", 23_000, id="read in place")],
)
def test_a_run_that_switched_and_lost_a_worker_replays_bit_for_bit(kind: str, hidden: int, tmp_path: Path) -> None:
    """Dropout, a schedule, cancelled steps; worker 1 dies in its fifth step."""
    train = functools.partial(chancy, epochs=9, kind=kind, hidden=hidden, dies=tmp_path / "died")
    run = ps.run(train, ALL, workers=3, runs=tmp_path)
    assert [one.split(" (after")[0].split(" to ")[1].split(" at ")[0] for one in said(run)] == [
        one.name for one in ALL.phases[1:]
    ]
    assert [one.died for one in events(run) if isinstance(one, Left)].count(True) == 1
    assert run.batches_unvisited == 0
    assert ps.replay(run.folder, train).identical


class Switcher:
    """Switches a run: to that phase, once it has taken so many steps."""

    def __init__(self, *steps: tuple[int, str | int]) -> None:
        self._steps = list(steps)

    def __call__(self, live: Live) -> None:
        if self._steps and live.steps >= self._steps[0][0]:
            live.switch(self._steps.pop(0)[1], "as the test wants it")


@pytest.mark.thorough
def test_live_switch_takes_a_name_a_recipe_or_a_number_and_the_run_replays(tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=14)
    watch = Switcher((30, "local_sgd"), (50, 1), (70, "sync_sgd"), (110, 0))  # the second one changes nothing
    run = ps.run(train, BY_HAND, workers=3, runs=tmp_path, watch=watch)
    asked = [one.phase for one in events(run) if isinstance(one, Switched)]
    assert [phase for phase, _ in itertools.groupby(asked)] == [
        1,
        2,
        0,
    ]  # the second is there if the first was under way yet
    assert len(said(run)) == 3
    assert all(": as the test wants it" in one for one in said(run))
    assert run.batches_unvisited == 0
    assert ps.replay(run.folder, train).identical


@pytest.mark.parametrize("phase", ["fedavg", 3, -1, True])
def test_an_unknown_phase_is_refused_with_those_that_there_are(phase: Any) -> None:
    live = Live(phases=tuple(one.name for one in BY_HAND.phases), order=lambda order: None)
    with pytest.raises(
        ConfigurationError, match=r"its phases are 0: async_sgd, 1: local_sgd\(every 2 steps\), 2: sync_sgd$"
    ):
        live.switch(phase)


def test_a_recipe_that_two_phases_are_of_is_no_name() -> None:
    live = Live(phases=("local_sgd(every 2 steps)", "local_sgd(every 4 steps)"), order=lambda order: None)
    live.switch("local_sgd(every 4 steps)")
    with pytest.raises(ConfigurationError, match="no phase of the run, or of several"):
        live.switch("local_sgd")


def test_a_run_without_phases_refuses_a_switch() -> None:
    with pytest.raises(ConfigurationError, match="the strategy has no phases"):
        Live().switch("local_sgd")


PACE_S = 0.03  # else the others may have ended before the switch is asked for


def holding_up(worker: ps.Worker, folder: Path, dies: bool) -> None:
    """Worker 1 is in its tenth step when the switch is asked for, and comes late; or never."""
    model = mlp()
    loader = DataLoader(TensorDataset(*data(192)), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), loader)
    step = 0
    for _ in range(3):
        for inputs, labels in loader:
            step += 1
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            if worker.rank == 1 and step == 10 and not (folder / "late").exists():
                (folder / "late").touch()
                time.sleep(1.5)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()


@pytest.mark.thorough
@pytest.mark.parametrize("dies", [False, True], ids=["comes late", "dies"])
def test_a_switch_waits_for_the_slowest_and_for_nobody_who_died(dies: bool, tmp_path: Path) -> None:
    asked: list[int] = []

    def watch(live: Live) -> None:
        if (tmp_path / "late").exists() and not asked:
            asked.append(live.version)
            live.switch("sync_sgd")

    train = functools.partial(holding_up, folder=tmp_path, dies=dies)
    run = ps.run(train, BY_HAND, workers=3, runs=tmp_path, watch=watch, pace=PACE_S)
    (what,) = said(run)
    assert 0.5 < float(what.split("(after ")[1].split(" s")[0]) < 5
    assert run.batches_unvisited == 0
    assert ps.replay(run.folder, train).identical


@pytest.mark.thorough
def test_a_server_that_dies_while_it_drains_switches_all_the_same(tmp_path: Path) -> None:
    todo: list[Callable[[Live], None]] = [
        lambda live: live.switch("local_sgd", "as the test wants it"),
        lambda live: os.kill(called("server")[0], signal.SIGKILL),
    ]

    def watch(live: Live) -> None:
        if (tmp_path / "late").exists() and todo:
            todo.pop(0)(live)

    train = functools.partial(holding_up, folder=tmp_path, dies=False)
    run = ps.run(train, BY_HAND, workers=3, runs=tmp_path, watch=watch, durability="process", pace=PACE_S)
    assert ["the server died" in one.what for one in run.incidents] == [True, False]
    assert ": as the test wants it" in said(run)[0]
    assert run.batches_unvisited == 0
    assert ps.replay(run.folder, train).identical


@pytest.mark.thorough
def test_a_run_that_is_stopped_while_it_drains_ends_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """The checkpoint is of the phase that began when all had come."""
    train = functools.partial(holding_up, folder=tmp_path, dies=False)
    asked: list[float] = []

    def watch(live: Live) -> None:
        if (tmp_path / "late").exists() and not asked:
            asked.append(live.time_s)
            live.switch("local_sgd")
        elif asked and live.time_s > asked[0] + 0.3:
            (run_folder(tmp_path) / "asked-stop").touch()

    run = ps.run(train, BY_HAND, workers=3, runs=tmp_path, watch=watch, checkpoint=ps.Checkpoint())
    assert run.ended == "stopped from the live page"
    assert run.folder is not None
    assert (len(said(run)), latest(run.folder).manifest.order.phase) == (1, 1)
    resumed = ps.run(train, BY_HAND, workers=3, runs=tmp_path, resume=run.folder)
    assert (resumed.batches_unvisited, said(resumed)) == (0, [])
    assert ps.replay(resumed.folder, train).identical


def run_folder(runs: Path) -> Path:
    return next(one for one in runs.iterdir() if one.is_dir())


FAR = ps.phases(ps.sync_sgd(), (6, ps.local_sgd(2)), (10, ps.diloco(2, codec="int8")))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param("sgd", marks=pytest.mark.slow), "adam"])
def test_workers_of_other_hosts_get_the_state_of_the_optimizer(kind: str) -> None:
    """It goes to them with the switch: the bits are those of workers beside the server."""
    train = functools.partial(chancy, epochs=2, kind=kind)
    local, far = ps.run(train, FAR, workers=2, seed=0), remote.run(train, FAR, workers=2)
    assert len(said(far)) == 2
    assert all(torch.equal(value, far.state_dict[name]) for name, value in local.state_dict.items())


@pytest.mark.thorough
def test_what_a_worker_of_another_host_holds_is_not_had_and_its_run_replays(tmp_path: Path) -> None:
    """Beside one of this host, whose state goes on for all; and one of another host comes late."""
    plan = ps.phases(ps.sync_sgd(), (4, ps.local_sgd(2)), (8, ps.async_sgd()), (40, ps.local_sgd(2, codec="int8")))
    train = functools.partial(chancy, epochs=8)
    with remote.head() as head:
        for rank in range(2):
            head.fork(train, rank=1 - rank, address=head.address.removeprefix("tcp://") if rank == 0 else head.address)
        done = head.run(plan, workers=2, runs=tmp_path)
        assert head.end() == [0, 0]
    assert len(said(done)) == 3
    assert "the state of the optimizer of worker 0 is dropped, for that of worker 1 is everybody's now" in said(done)[1]
    assert ps.replay(done.folder, train).identical


@pytest.mark.thorough
def test_alone_on_other_hosts_their_state_is_dropped_aloud_and_the_run_replays(tmp_path: Path) -> None:
    plan = ps.phases(ps.local_sgd(2), (5, ps.sync_sgd()))
    train = functools.partial(chancy, epochs=2, kind="adam")
    done = remote.run(train, plan, workers=2, runs=tmp_path)
    assert "the state of the workers' optimizers is dropped, for they are all on other hosts" in said(done)[0]
    assert ps.replay(done.folder, train).identical
