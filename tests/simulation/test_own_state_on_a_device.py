"""What a worker on a device holds leaves it only when a checkpoint waits for that, and a resumed run is the uninterrupted one.

The device is the CPU, which is taken for another: what is left when is not decided by where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, Restart, Slow
from plesio.launch.one_process import seating
from plesio.memory.machine import Machine
from plesio.server.checkpoints import FOLDER
from plesio.strategy import Strategy
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.replicas import own
from support.loops import descend
from support.runs import by_name, same

DATA = TensorDataset(torch.randn(240, 6, generator=torch.Generator().manual_seed(1)))
EVEN = Cluster((Group(2, Constant(0.1)),))
UNEVEN = Cluster((Group(1, Constant(0.1)), Group(1, Constant(0.23))))
EVERY = 3


def train(worker: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(DATA, batch_size=4, shuffle=True))
    for (rows,) in loader:
        descend(optimizer, model(rows).square().mean())


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Which worker left what it held, and after which contribution."""
    left: list[tuple[int, int]] = []
    plain = own.OwnState.keep

    def keep(state: own.OwnState, number: int) -> None:
        left.append((state._worker, number))
        plain(state, number)

    monkeypatch.setattr(own.OwnState, "keep", keep)
    monkeypatch.setattr(ServerExchange, "_may_wait", lambda exchange, strategy: True)
    monkeypatch.setattr(seating, "Machine", lambda blocks, in_one_process: Machine(blocks))
    return left


def simulated(strategy: Strategy, cluster: Cluster = EVEN, **options: Any) -> ps.Run:
    return ps.run(train, strategy, workers=2, engine=ps.Simulated(cluster), seed=2, **options)


def held_in(run: ps.Run) -> dict[int, list[str]]:
    """Of which workers each checkpoint has what they held."""
    kept = sorted((run.folder / FOLDER).iterdir())
    return {int(one.name[-8:]): [of.name for of in sorted(one.glob("worker-*"))] for one in kept}


BOTH = ["worker-0.pt", "worker-1.pt"]


def test_it_is_left_for_checkpoints_alone(left: list[tuple[int, int]], tmp_path: Path) -> None:
    """One is due after the sixth of ten versions. (What a worker computes next it computes when it is answered.)"""
    run = simulated(ps.local_sgd(EVERY), runs=tmp_path, checkpoint=ps.Checkpoint(every_s=2.0, keep=9))
    assert run.version == 10
    assert held_in(run) == {7: BOTH, 10: BOTH}
    assert left == [(worker, number) for number in (7, 8, 10) for worker in (0, 1)]


@pytest.mark.few(1)
@pytest.mark.parametrize("cluster", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(
    "strategy", [ps.local_sgd(EVERY), ps.diloco(EVERY, codec="int8"), ps.sync_sgd(codec="int8")], ids=by_name
)
def test_a_resumed_run_is_the_uninterrupted_one(
    strategy: Strategy, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a periodic checkpoint: in virtual time a run ends at once, and writes none without what workers hold."""
    kept = ps.Checkpoint(every_s=1.2, keep=9)
    whole = simulated(strategy, cluster, runs=tmp_path / "a", checkpoint=kept)
    first, *_, last = [of for of, held in held_in(whole).items() if held == BOTH]
    assert 0 < first < last == whole.version
    resumed = whole.folder / FOLDER / f"version-{first:08d}"
    second = simulated(strategy, cluster, runs=tmp_path / "b", resume=resumed, checkpoint=kept)
    assert second.version == whole.version
    assert same(second, whole)
    assert "begins anew" not in str(second.incidents)


def with_a_slow_one(factor: float, tmp_path: Path, **options: Any) -> ps.Run:
    slow = Cluster((Group(2, Constant(0.1)),), faults=(Slow(worker=1, at_s=0.5, factor=factor),))
    kept = ps.Checkpoint(every_s=2.0, keep=9)
    return simulated(ps.async_local_sgd(EVERY), slow, runs=tmp_path, checkpoint=kept, **options)


def test_while_a_slow_worker_is_waited_for_the_other_leaves_it_at_every_exchange(
    left: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Between two exchanges of the slow one there are ten of the other."""
    run = with_a_slow_one(10.0, tmp_path)
    first, *_ = held_in(run)
    of_slow = [number for worker, number in left if worker == 1]
    of_other = [number for worker, number in left[: left.index((1, of_slow[0]))] if worker == 0]
    assert of_other == list(range(of_other[0], of_other[0] + len(of_other)))
    assert first >= 2.0 / 0.3 + len(of_other)
    assert set(map(tuple, held_in(run).values())) == {tuple(BOTH)}
    assert run.incidents == ()


def test_a_frozen_worker_holds_a_checkpoint_up_for_as_long_as_it_may_be_silent(tmp_path: Path) -> None:
    run = with_a_slow_one(1000.0, tmp_path, timeout_s=1.5)
    (first, held), *_ = held_in(run).items()
    assert held == BOTH[:1]
    assert 3.5 / 0.3 < first < 4.0 / 0.3 + 2
    assert run.incidents[0].what == "no exchange of worker 1 for 1.5 s: the checkpoint lacks what it holds"
    assert run.incidents[0].time_s == pytest.approx(3.5, abs=0.3)
    resumed = simulated(ps.async_local_sgd(EVERY), runs=tmp_path, resume=run.folder / FOLDER / f"version-{first:08d}")
    lost = "the checkpoint does not hold the state of the optimizer of worker 1, which begins anew"
    assert lost in [one.what for one in resumed.incidents]


def test_a_worker_that_dies_is_not_waited_for_and_its_successor_is(tmp_path: Path) -> None:
    dies = Cluster((Group(2, Constant(0.1)),), faults=(Crash(worker=1, at_s=1.95), Restart(worker=1, at_s=2.5)))
    run = simulated(ps.local_sgd(EVERY), dies, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=2.0, keep=9))
    first, *_, last = held_in(run).values()
    assert (first, last) == (BOTH[:1], BOTH)
    assert not [one for one in run.incidents if "no exchange" in one.what]


def test_where_exchanges_are_far_apart_it_is_left_at_each(left: list[tuple[int, int]], tmp_path: Path) -> None:
    """Also by the fast worker, which waits for the slow one; not at its first."""
    uneven = Cluster((Group(1, Constant(0.1)), Group(1, Constant(own.CLOSE_S / EVERY + 0.1))))
    run = simulated(ps.local_sgd(EVERY), uneven, runs=tmp_path, checkpoint=ps.Checkpoint(every_s=1e6))
    of_each = [[number for one, number in left if one == worker] for worker in (0, 1)]
    assert of_each == [list(range(2, run.version + 1)), list(range(1, run.version + 1))]
