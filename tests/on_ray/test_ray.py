"""Runs on Ray: real clusters, actors that are killed, a host that is removed."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.core.events import Joined
from plesio.observe.summary import Summary
from plesio.protocol.journal import read_journal
from support.loops import CLASSES, FEATURES, data

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray installs it")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
STEPS = 2400


def loop(config: dict[str, Any]) -> None:
    """What Ray runs on each worker."""
    with ps.join() as worker:
        counting(worker, config["into"])


def counting(worker: ps.Worker, into: Path) -> None:
    """Trains for 2,400 steps in all: slowly until there is a file called fast."""
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(*data(960)), batch_size=4, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(10):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            if not (into / "fast").exists():
                time.sleep(0.1)
            optimizer.step()
            (into / f"at-{worker.rank}-{os.getpid()}").write_text(str(worker.version))


def norm(model: nn.Module) -> dict[str, float]:
    return {"norm": float(sum(one.square().sum() for one in model.parameters()))}


def at(into: Path) -> dict[tuple[int, int], int]:
    """How far each worker has come, by rank and process."""
    found = {}
    for file in into.glob("at-*"):
        rank, pid = file.name.split("-")[1:]
        found[int(rank), int(pid)] = int(file.read_text() or 0)
    return found


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.05)


def training(into: Path, processes: int, after: int = 0) -> bool:
    """Whether so many processes have trained, all of them until after that version."""
    return len(at(into)) >= processes and min(at(into).values()) > after


@contextmanager
def meanwhile(do: Callable[[], None], into: Path) -> Iterator[None]:
    """Do something beside a run; then, or if that fails, let it come to its end."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            do()
        except BaseException as error:
            raised.append(error)
        (into / "fast").touch()

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        if raised:
            raise raised[0]


def fit(into: Path, workers: int = 3, **options: Any) -> None:
    """A run by Ray's own trainer."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    trainer = ps.ray.DataParallelTrainer(
        loop,
        train_loop_config={"into": into},
        backend_config=ps.ray.PlesioConfig("async_sgd", runs=into / "runs", **options),
        scaling_config=ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        run_config=RunConfig(storage_path=str(into / "ray"), failure_config=FailureConfig(max_failures=-1)),
    )
    trainer.fit()


def summaries(into: Path) -> list[tuple[Path, Summary]]:
    """The run folders that have come to an end."""
    return [
        (one.parent, msgspec.json.decode(one.read_bytes(), type=Summary))
        for one in sorted(into.glob("runs/*/*/summary.json"))
    ]


def alone(into: Path) -> tuple[Path, Summary]:
    (one,) = summaries(into)
    return one


def joined(folder: Path) -> list[tuple[int, int]]:
    events = [one.event for one in read_journal(folder).decisions()]
    return sorted((one.worker, one.incarnation) for one in events if isinstance(one, Joined))


def pid_of_head() -> int:
    (pid,) = (
        one["Pid"]
        for one in ray._private.state.actors().values()
        if one["ActorClassName"] == "Head" and one["State"] == "ALIVE"
    )
    return int(pid)


def test_a_run_on_two_hosts_counts_every_step(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "fast").touch()
    fit(tmp_path, evaluate=norm, evaluate_every_s=0.1)
    folder, done = alone(tmp_path)
    assert (done.version, done.steps, done.folded, done.batches_unvisited) == (STEPS, STEPS, STEPS, 0)
    assert not done.discarded
    assert [one.left for one in done.workers] == ["finished"] * 3
    assert done.history
    assert joined(folder) == [(0, 1), (1, 1), (2, 1)]


def test_only_a_killed_worker_is_replaced(cluster: Any, tmp_path: Path) -> None:
    def kill() -> None:
        until(lambda: training(tmp_path, 3, after=20))
        (victim,) = (pid for rank, pid in at(tmp_path) if rank == 1)
        os.kill(victim, signal.SIGKILL)
        killed_at = max(at(tmp_path).values())
        until(lambda: training(tmp_path, 4))
        others = {key: version for key, version in at(tmp_path).items() if key[0] != 1}
        assert min(others.values()) > killed_at + 10, "the survivors went on"

    with meanwhile(kill, tmp_path):
        fit(tmp_path)
    folder, done = alone(tmp_path)
    assert sorted(rank for rank, _ in at(tmp_path)) == [0, 1, 1, 2]
    assert (done.version, done.steps, done.folded, done.batches_unvisited) == (STEPS, STEPS, STEPS, 0)
    assert joined(folder) == [(0, 1), (1, 1), (1, 2), (2, 1)]


def pid_of_server() -> int:
    """The head starts a fork server, and that the server, first of all."""
    pid = pid_of_head()
    for _ in range(2):
        pid = next(
            int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()
        )
    return pid


@pytest.mark.parametrize("victim", [pid_of_head, pid_of_server])
def test_workers_outlive_a_killed_head(victim: Callable[[], int], cluster: Any, tmp_path: Path) -> None:
    def kill() -> None:
        until(lambda: training(tmp_path, 3, after=100))
        before = max(at(tmp_path).values())
        os.kill(victim(), signal.SIGKILL)
        until(lambda: training(tmp_path, 3, after=before + 50))

    with meanwhile(kill, tmp_path):
        fit(tmp_path, checkpoint=ps.Checkpoint(every_s=0.5), evaluate=norm)
    assert sorted(rank for rank, _ in at(tmp_path)) == [0, 1, 2], "no worker was replaced"
    folder, done = alone(tmp_path)
    assert (done.version, done.batches_unvisited) == (STEPS, 0)
    assert done.incidents[0].what.startswith("resumed at version ")
    assert "undone" in done.incidents[0].what
    assert done.history, "evaluated, though every worker goes over the network"
    assert joined(folder) == [(worker, life) for worker in range(3) for life in (1, 2)]


def test_a_new_group_joins_the_head_that_lost_all_workers(cluster: Any, tmp_path: Path) -> None:
    def kill() -> None:
        until(lambda: training(tmp_path, 3, after=20))
        for _, pid in at(tmp_path):
            os.kill(pid, signal.SIGKILL)
        until(lambda: training(tmp_path, 6))

    with meanwhile(kill, tmp_path):
        fit(tmp_path)
    folder, done = alone(tmp_path)
    assert (done.version, done.steps, done.folded, done.batches_unvisited) == (STEPS, STEPS, STEPS, 0)
    assert joined(folder) == [(worker, life) for worker in range(3) for life in (1, 2)]


def test_workers_of_a_removed_host_are_replaced_elsewhere(cluster: Any, tmp_path: Path) -> None:
    host = cluster.add_node(num_cpus=2)  # in time for one of three; there is room for it elsewhere

    def remove() -> None:
        until(lambda: training(tmp_path, 3, after=20))
        cluster.remove_node(host, allow_graceful=False)
        until(lambda: training(tmp_path, 4))

    with meanwhile(remove, tmp_path):
        fit(tmp_path)
    _, done = alone(tmp_path)
    assert len({rank for rank, _ in at(tmp_path)}) == 3
    assert (done.version, done.steps, done.folded, done.batches_unvisited) == (STEPS, STEPS, STEPS, 0)
    assert any("is back" in one.what for one in done.incidents)


def test_ps_run_on_ray_returns_the_run(cluster: Any, tmp_path: Path) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    (tmp_path / "fast").touch()
    engine = ps.Ray(placement="SPREAD")
    done = ps.run(
        functools.partial(counting, into=tmp_path),
        ps.sync_sgd(),
        workers=2,
        engine=engine,
        evaluate=norm,
        runs=tmp_path / "runs",
    )
    assert (done.version, done.steps, done.batches_unvisited) == (STEPS // 2, STEPS, 0)
    assert done.state_dict.keys() == {"weight", "bias"}
    assert done.folder is not None
    assert done.history


def test_ps_run_on_ray_is_shown_while_it_goes_on(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    said, seen = [], []

    def look() -> None:
        until(lambda: "live page: " in "".join(said) or said.append(capsys.readouterr().err))
        address = "".join(said).split("live page: ")[1].split()[0]
        until(lambda: seen.append(json.load(urllib.request.urlopen(f"{address}runs", timeout=30))) or seen[-1])
        name = urllib.parse.quote(seen[-1][0]["name"])
        with urllib.request.urlopen(f"{address}events?run={name}", timeout=60) as stream:
            until(lambda: '"kind":"at"' in stream.readline().decode())

    with meanwhile(look, tmp_path):
        train = functools.partial(counting, into=tmp_path)
        done = ps.run(train, "async_sgd", workers=2, engine=ps.Ray(), runs=tmp_path / "runs", watch=True)
    assert done.steps == STEPS
    assert seen[-1][0]["strategy"] == "async_sgd"


def refusing(worker: ps.Worker) -> None:
    raise KeyError("no such column")


def test_ps_run_on_ray_raises_what_a_worker_raised(cluster: Any) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.raises(ps.WorkerError, match="no such column"):
        ps.run(refusing, ps.async_sgd(), workers=2, engine=ps.Ray())
