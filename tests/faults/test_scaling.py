"""A run whose number of workers changes while it goes on: real processes come, leave and die."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from plesio.core.events import Joined, Left, Scaled
from plesio.launch.job import Live
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from plesio.strategy.recipes import buffered
from support import remote
from support.long_forms import but_slow, but_thorough
from support.loops import visit
from support.replayed import chancy

ROWS, EPOCHS, BATCH = 320, 6, 4
STRATEGIES = [ps.async_sgd(), ps.sync_sgd(), buffered(3), ps.bounded_staleness(2), ps.local_sgd(every=3)]


class Scaler:
    """Scales a run: to so many workers once it has got to that step."""

    def __init__(self, *steps: tuple[int, int]) -> None:
        self._steps = list(steps)

    def __call__(self, live: Live) -> None:
        if self._steps and live.steps >= self._steps[0][0]:
            live.scale(self._steps.pop(0)[1])
            self.now = live.workers


class EndsScaled(Scaler):
    """Scales a run to 4, and lets `chancy` end its server once two checkpoints came since: the later one knows of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__((2, 4))
        self._folder, self._before = folder, set[Path]()

    def __call__(self, live: Live) -> None:
        super().__call__(live)
        now = set((self._folder / "runs").rglob("version-*/manifest.json"))
        if live.workers != 4:
            self._before = now
        elif len(now - self._before) >= 2:
            told = self._folder / "now" / "version-0" / "manifest.json"
            told.parent.mkdir(exist_ok=True)
            told.touch()


def trained(train: Callable[..., Any], strategy: Strategy, folder: Path, watch: Any, **options: Any) -> ps.Run:
    settings = {"workers": 2, "workers_max": 4, "timeout_s": 60, **options}
    return ps.run(train, strategy, watch=watch, runs=folder / "runs", **settings)


def events(run: ps.Run) -> list[Any]:
    return [one.event for one in read_journal(run.folder).decisions()]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", but_thorough(STRATEGIES, {"async_sgd"}, {"sync_sgd"}), ids=lambda one: one.name)
def test_scaled_up_and_down_every_batch_is_folded_once_and_the_journal_replays(
    strategy: Strategy, tmp_path: Path
) -> None:
    train = functools.partial(visit, folder=str(tmp_path), rows=ROWS, epochs=EPOCHS, pause_s=0.01, batch=BATCH)
    done = trained(train, strategy, tmp_path, Scaler((20, 4), (150, 1), (220, 3)))
    assert [one.workers for one in events(done) if isinstance(one, Scaled)] == [4, 1, 3]
    assert (done.batches_unvisited, done.steps - sum(done.discarded.values())) == (0, EPOCHS * ROWS // BATCH)
    left = [(one.worker, one.died) for one in events(done) if isinstance(one, Left)]
    assert Counter(left) == {(0, False): 1, (1, False): 2, (2, False): 2, (3, False): 1}
    told = [one.what for one in done.incidents if "scaled" in one.what]
    assert told == [f"scaled from {a} to {b} workers" for a, b in ((2, 4), (4, 1), (1, 3))]
    assert [one.left for one in done.workers] == ["finished"] * 3 + ["left as told"]
    assert ps.replay(done.folder, train).identical


@pytest.mark.thorough
def test_each_update_moves_by_its_share_of_the_workers_that_there_are(tmp_path: Path) -> None:
    done = trained(functools.partial(chancy, epochs=12), ps.async_sgd(), tmp_path, Scaler((20, 4), (60, 1)))
    workers, seen = 2, Counter[float]()
    for one in read_journal(done.folder).decisions():
        if isinstance(one.event, Scaled):
            workers = one.event.workers
        for fold in one.folds:
            assert fold.scale == 1 / workers
            seen[fold.scale] += 1
    assert min(seen[1 / 2], seen[1 / 4], seen[1]) > 0


@pytest.mark.thorough
def test_rounds_of_sync_sgd_are_of_all_that_are_there(tmp_path: Path) -> None:
    def watch(live: Live) -> None:
        """A third comes once two have trained a while, and once it has too, one is left."""
        steps = [one.steps for one in live.now.workers] if live.now else []
        if live.workers == len(steps) and len(steps) > 1 and min(steps) > 8:
            live.scale({2: 3, 3: 1}[len(steps)])

    done = trained(functools.partial(chancy, epochs=16), ps.sync_sgd(), tmp_path, watch)
    there: set[int] = set()
    sizes = Counter[int]()
    for record in read_journal(done.folder).decisions():
        if isinstance(record.event, Joined):
            there.add(record.event.worker)
        elif isinstance(record.event, Left):
            there.discard(record.event.worker)
        for fold in record.folds:
            assert {one.worker for one in fold.members} >= there
            sizes[len(fold.members)] += 1
    assert min(sizes[1], sizes[2], sizes[3]) > 5


@pytest.mark.thorough
def test_a_run_that_is_never_scaled_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=2, kind="adam")
    elastic = trained(train, ps.sync_sgd(), tmp_path, None)
    plain = trained(train, ps.sync_sgd(), tmp_path, None, workers_max=None)
    assert all(torch.equal(value, elastic.state_dict[name]) for name, value in plain.state_dict.items())
    assert len(elastic.workers) == len(plain.workers) == 2
    assert ps.replay(elastic.folder, train).identical


@pytest.mark.thorough
def test_a_worker_that_is_killed_on_its_way_out_costs_nothing(tmp_path: Path) -> None:
    train = functools.partial(kills_itself_when_told, folder=tmp_path)

    def watch(live: Live) -> None:
        scaler(live)
        if getattr(scaler, "now", 2) == 1:
            (tmp_path / "now").touch()

    scaler = Scaler((10, 4), (40, 1))
    done = trained(train, ps.async_sgd(), tmp_path, watch)
    assert done.batches_unvisited == 0
    assert ps.replay(done.folder, train, force=True).identical


def kills_itself_when_told(worker: ps.Worker, folder: Path) -> None:
    """Worker 3 does, in place of leaving."""
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.randn(300, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        time.sleep(0.01)
        if worker.rank == 3 and worker.server_pid and (folder / "now").exists():  # not in a replay
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()


def test_a_run_whose_last_worker_dies_after_it_was_scaled_down_is_lost(tmp_path: Path) -> None:
    with pytest.raises(ps.WorkerLostError, match="every worker died"):
        trained(dies_alone, ps.async_sgd(), tmp_path, Scaler((10, 1)))


def dies_alone(worker: ps.Worker) -> None:
    """Worker 0 does, once it has been alone for some steps."""
    model = torch.nn.Linear(2, 1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4000, 2)), batch_size=2)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), loader)
    alone = 0
    for (inputs,) in loader:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        time.sleep(0.005)
        optimizer.step()
        alone = alone + 1 if worker.staleness == 0 else 0
        if worker.rank == 0 and alone > 20:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", but_slow([ps.async_sgd(), ps.sync_sgd()], {"async_sgd"}), ids=lambda one: one.name)
def test_a_scaled_run_resumes_with_its_first_number_of_workers(strategy: Strategy, tmp_path: Path) -> None:
    (tmp_path / "now").mkdir()
    train = functools.partial(chancy, epochs=16, kind="adam", ends=tmp_path / "now")
    options = {"checkpoint": ps.Checkpoint(every_s=0.1)}
    with pytest.raises(ps.ServerLostError, match="go on from the last checkpoint"):
        trained(train, strategy, tmp_path, EndsScaled(tmp_path), durability="none", **options)
    (broken,) = (one for one in (tmp_path / "runs").iterdir() if one.is_dir())
    resumed = trained(train, strategy, tmp_path, Scaler((30, 3)), resume=broken, **options)
    assert [one.workers for one in events(resumed) if isinstance(one, Scaled)] == [4, 2, 3]
    assert resumed.batches_unvisited == 0
    assert ps.replay(resumed.folder, train).identical


@pytest.mark.thorough
def test_more_workers_join_than_the_run_began_with(tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=30)
    with remote.head() as head:
        for rank in range(2):
            head.fork(train, rank=rank)
        head.fork(train, after_s=1.0)
        done = head.run("async_sgd", workers=2, workers_max=3, runs=tmp_path)
        assert head.end() == [0, 0, 0]
    assert [one.workers for one in events(done) if isinstance(one, Scaled)] == [3]
    assert len(done.workers) == 3
    joined_s = next(one.time_s for one in done.incidents if "scaled" in one.what)
    assert min(one.time_s for one in done.logged if one.worker == 2) >= joined_s
    assert done.batches_unvisited == 0
    assert ps.replay(done.folder, train).identical


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("workers", "options", "why"),
    [
        (
            3,
            {"workers_max": None},
            r"scale\(3\): the run has 2 workers from beginning to end; start it with workers_max=",
        ),
        (5, {}, r"scale\(5\): a whole number from 1 to 4, the run's workers_max"),
        (0, {}, r"scale\(0\): a whole number from 1 to 4"),
        (2.0, {}, r"scale\(2.0\): a whole number from 1 to 4"),
    ],
)
def test_a_number_that_cannot_be_is_refused_where_it_is_asked_for(
    workers: Any, options: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ps.ConfigurationError, match=why):
        trained(chancy, ps.async_sgd(), tmp_path, Scaler((1, workers)), **options)


def test_first_of_refuses_fewer_workers_than_it_waits_for(tmp_path: Path) -> None:
    with pytest.raises(ps.StrategyError, match="the first 2 of 1 workers will never come"):
        trained(chancy, ps.first_of(2), tmp_path, Scaler((1, 1)))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"workers_max": 1}, "workers_max=1: a whole number from 2 to 80"),
        ({"workers_max": 81}, "from 2 to 80"),
        ({"workers_max": "4"}, "workers_max='4': a whole number"),
        ({"strategy": "hogwild"}, "under hogwild workers fold without a server"),
        ({"strategy": ps.allreduce("torch")}, "take async_sgd or sync_sgd, or leave workers_max out"),
        ({"engine": ps.Simulated("one-straggler")}, "in a simulated run the cluster says who is there when"),
        ({"engine": ps.Ray()}, "on Ray, its scaling_config says how many there are"),
    ],
)
def test_a_run_that_cannot_be_scaled_is_refused_before_it_starts(options: dict[str, Any], why: str) -> None:
    settings = {"strategy": "async_sgd", "workers": 2, "workers_max": 4, **options}
    with pytest.raises(ps.ConfigurationError, match=why):
        ps.run(chancy, **settings)
