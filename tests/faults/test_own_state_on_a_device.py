"""What workers on a device hold is in the last checkpoint, whatever ends the run: real processes, stopped and killed for real.

The device is the CPU, which is taken for another.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.server.checkpoints import FOLDER, latest
from plesio.strategy import Strategy
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.replicas.own import OwnState
from support import loops
from support.processes import called

EVERY = 5
OFTEN, RARE = ps.Checkpoint(every_s=0.6, keep=9), ps.Checkpoint(every_s=1000)
BOTH = ["worker-0.pt", "worker-1.pt"]


def train(worker: Any, pause_s: float = 0.02, freezes: bool = False) -> int:
    """How often this worker left what it held, if it is a process of its own (and not replayed)."""
    left = Mock()
    if not worker._context.inline:
        patch.object(ServerExchange, "_may_wait", lambda exchange, strategy: True).start()
        left = patch.object(OwnState, "keep", autospec=True, side_effect=OwnState.keep).start()
    inputs, labels = loops.data(400)
    model = loops.mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    if worker.island.ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    for step, (rows, wanted) in enumerate(loader):
        optimizer.zero_grad()
        cross_entropy(model(rows), wanted).backward()
        time.sleep(pause_s)
        if freezes and worker.rank == 1 and step == 3 * EVERY:
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.step()
    return left.call_count


def trained(folder: Path | None, strategy: Strategy, **options: Any) -> ps.Run:
    function = options.pop("function", train)
    return ps.run(function, strategy, workers=2, runs=folder, timeout_s=30, seed=3, **options)


def same(one: ps.Run, other: ps.Run) -> bool:
    return all(torch.equal(value, other.state_dict[name]) for name, value in one.state_dict.items())


def last_held(folder: Path) -> list[str]:
    return sorted(one.name for one in latest(folder).path.glob("worker-*"))


def press_after(seconds: float) -> Callable[[ps.Live], None]:
    pressed: list[float] = []

    def watch(live: ps.Live) -> None:
        if live.time_s > seconds and not pressed:
            pressed.append(live.time_s)
            os.kill(os.getpid(), signal.SIGINT)

    return watch


@pytest.mark.thorough
@pytest.mark.parametrize("how", [pytest.param("until", marks=pytest.mark.slow), "ctrl-c"])
def test_a_run_that_is_stopped_in_its_local_steps_goes_on_bit_for_bit(how: str, tmp_path: Path) -> None:
    """Its workers come to their next exchange, and leave what they hold there."""
    strategy = ps.local_sgd(EVERY)
    function = partial(train, pause_s=0.1)
    whole = trained(None, strategy)
    if how == "until":
        first = trained(tmp_path / "a", strategy, function=function, checkpoint=RARE, until=ps.Until(seconds=1.7))
    else:
        with pytest.raises(ps.RunInterrupted) as caught:
            trained(tmp_path / "a", strategy, function=function, checkpoint=RARE, watch=press_after(1.7))
        first = caught.value.run
    assert 0 < first.version < whole.version
    assert first.folder is not None
    assert latest(first.folder).manifest.version == first.version
    assert last_held(first.folder) == BOTH
    second = trained(tmp_path / "b", strategy, resume=first.folder)
    assert second.version == whole.version
    assert same(second, whole)
    assert second.folder is not None
    assert ps.replay(second.folder, train).identical


@pytest.mark.thorough
def test_each_rank_of_an_island_leaves_its_part_when_it_is_asked(tmp_path: Path) -> None:
    """Two islands of two ranks, stopped in their local steps."""
    strategy, islands = ps.local_sgd(EVERY), {"ranks": 2}
    function = partial(train, pause_s=0.05)
    whole = trained(tmp_path / "whole", strategy, checkpoint=RARE, **islands)
    assert max(whole.returned) < whole.version
    until = ps.Until(seconds=1.2)
    first = trained(tmp_path / "a", strategy, function=function, checkpoint=RARE, until=until, **islands)
    assert 0 < first.version < whole.version
    assert first.folder is not None
    assert last_held(first.folder) == BOTH
    second = trained(tmp_path / "b", strategy, resume=first.folder, **islands)
    assert second.version == whole.version
    assert same(second, whole)


@pytest.mark.thorough
def test_it_is_left_for_checkpoints_alone_and_a_reborn_server_waits_for_it_too(tmp_path: Path) -> None:
    times = [0.5, 1.0]

    def watch(live: ps.Live) -> None:
        if times and live.time_s > times[0] and (found := called("server")):
            times.pop(0)
            os.kill(found[0], signal.SIGKILL)

    run = trained(tmp_path, ps.local_sgd(EVERY), checkpoint=OFTEN, durability="process", watch=watch)
    assert len(run.incidents) == 2
    assert run.folder is not None
    checkpoints = [one for one in (run.folder / FOLDER).iterdir() if not one.name.endswith("-00000000")]
    assert checkpoints
    assert all(sorted(of.name for of in one.glob("worker-*")) == BOTH for one in checkpoints)
    assert max(run.returned) < run.version
    assert ps.replay(run.folder, train).identical


@pytest.mark.slow
def test_a_stop_waits_for_a_frozen_worker_for_a_while(tmp_path: Path) -> None:
    frozen, until = partial(train, freezes=True), ps.Until(seconds=2)
    run = trained(tmp_path, ps.async_local_sgd(EVERY), function=frozen, checkpoint=RARE, until=until)
    assert {one.what for one in run.incidents} == {
        "no exchange of worker 1 for 20 s: the checkpoint lacks what it holds",
        "worker 1 did not end within 3 s of being asked to and was stopped: what it was at is lost",
    }
    assert run.folder is not None
    assert last_held(run.folder) == BOTH[:1]
