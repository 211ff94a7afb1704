"""A counter that all workers share."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps

GAMES = 60


def plays(worker: ps.Worker, folder: str, games: int = GAMES, dies: bool = False) -> None:
    """Plays until all have played so many; what each saw is written down."""
    model = nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    played = worker.counter("episodes")
    seen = []
    try:
        while played.value < games:
            if dies and worker.rank == 1 and len(seen) == 5 and worker.server_pid:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(torch.rand(4, 1)).sum().backward()
            played.add()
            optimizer.step()
            if dies:  # else one might play all before the other dies
                time.sleep(0.005)
            seen.append(played.value)
    finally:
        Path(folder, f"{worker.rank}-{os.getpid()}").write_text(" ".join(map(str, seen)))


def seen_in(folder: Path) -> list[list[int]]:
    return [[int(one) for one in path.read_text().split()] for path in sorted(folder.iterdir())]


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd", "buffered", ps.first_of(1), ps.local_sgd(2)], ids=str)
@pytest.mark.parametrize("engine", ["local", ps.Simulated("one-straggler")], ids=["real", "simulated"])
def test_workers_count_together_and_a_replay_counts_the_same(strategy: Any, engine: Any, tmp_path: Path) -> None:
    (seen := tmp_path / "seen").mkdir()
    part = partial(plays, folder=str(seen))
    run = ps.run(part, strategy, workers=2, timeout_s=30.0, runs=tmp_path / "runs", engine=engine)
    all_seen = seen_in(seen)
    assert all(one == sorted(one) for one in all_seen), "it never falls"
    assert max(one[-1] for one in all_seen) >= GAMES
    if not run.discarded:
        assert GAMES <= run.steps < GAMES + 6, "few are played beyond it"
    assert run.folder is not None
    assert ps.replay(run.folder, part).identical


def test_what_a_dead_worker_counted_stays_counted(tmp_path: Path) -> None:
    run = ps.run(partial(plays, folder=str(tmp_path), dies=True), "async_sgd", workers=2, timeout_s=30.0)
    (seen,) = seen_in(tmp_path)
    assert GAMES == seen[-1] == len(seen) + 5 == run.steps


@pytest.mark.thorough
def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    (seen := tmp_path / "seen").mkdir()
    part = partial(plays, folder=str(seen), games=400)
    runs, keeping = tmp_path / "runs", ps.Checkpoint()
    first = ps.run(
        part, "sync_sgd", workers=2, timeout_s=30.0, until=ps.Until(steps=100), runs=runs, checkpoint=keeping
    )
    assert first.folder is not None
    rest = ps.run(part, "sync_sgd", workers=2, timeout_s=30.0, resume=first.folder)
    assert rest.version == 200, "all games were played once"


def wrong(worker: ps.Worker, name: Any, amount: Any) -> None:
    """`name`: several, by a blank; of each worker, by a bar."""
    if name == "before":
        worker.counter("episodes")
    model = nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for own in name.split("|")[worker.rank % (1 + name.count("|"))].split():
        worker.counter(own).add(amount)
    model(torch.rand(4, 1)).sum().backward()
    optimizer.step()


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("strategy", "name", "amount", "words"),
    [
        ("async_sgd", "before", 1, "worker.counter before prepare"),
        ("hogwild", "games", 1, "loop over worker.steps"),
        (ps.allreduce("torch"), "games", 1, "loop over worker.steps"),
        ("async_sgd", "games" * 4, 1, "1 to 16 ASCII characters"),
        ("async_sgd", "a b c d e", 1, "4 counters at most: a, b, c, d"),
        ("sync_sgd", "a b c|d e f", 1, "the workers use 6 counters"),
        ("async_sgd", "games", -1, "a whole number from 0"),
        ("async_sgd", "games", 1.0, "a whole number from 0"),
    ],
)
def test_a_wrong_counter_is_refused(strategy: Any, name: str, amount: Any, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(partial(wrong, name=name, amount=amount), strategy, workers=1 + name.count("|"), timeout_s=30.0)
