"""A death under `hogwild` or an all-reduce by torch loses no batch and folds none twice: recomputed from the weights.

Each sample has a row of its own in the model, and each fold of it takes 1 from that row.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from support.long_forms import but_slow

BATCH = 4
WORKERS = 4
STRATEGIES = {"hogwild": ps.hogwild, "allreduce": partial(ps.allreduce, "torch")}
ROWS = {"hogwild": 16_000, "allreduce": 2_400}


def counting(worker: ps.Worker, name: str, die: str = "", who: int = 1, at: int = 6) -> None:
    """One epoch; worker `who` kills itself in or after its step `at`, as `die` says."""
    rows = ROWS[name]
    model = nn.Embedding(rows, 1, sparse=name == "hogwild")
    nn.init.zeros_(model.weight)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=WORKERS)
    steps = itertools.count(1)
    loader = DataLoader(TensorDataset(torch.arange(rows)), batch_size=BATCH, shuffle=True)
    if worker.rank == who and die == "in the step":
        optimizer.register_step_post_hook(lambda *_: end_itself() if next(steps) == at else None)
    wrapped, optimizer, loader = worker.prepare(model, optimizer, loader)
    for (samples,) in loader:
        optimizer.zero_grad()
        wrapped(samples).sum().backward()
        now = worker.rank == who and die != "in the step" and next(steps) == at
        if now and die == "before the step":
            end_itself()
        optimizer.step()
        if now and die == "after the step":
            end_itself()


def end_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def visits(run: ps.Run) -> torch.Tensor:
    """How often each sample is in the weights."""
    return -run.state_dict["weight"].flatten().round().long()


def perhaps_twice(run: ps.Run) -> int:
    """Batches that the run says may be folded twice."""
    told = [re.search(r"batches possibly folded twice: (\d+)$", one.what) for one in run.incidents]
    return sum(int(one[1]) for one in told if one)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", but_slow(range(3), {0}))
@pytest.mark.parametrize("name", but_slow(STRATEGIES, {"hogwild"}))
def test_random_kills_fold_no_batch_twice(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    kills = [ps.Kill(worker=worker, after_s=rng.uniform(0.02, 0.3)) for worker in (1, 3)]
    run = ps.run(partial(counting, name=name), STRATEGIES[name](), workers=WORKERS, faults=kills, timeout_s=60)
    seen = visits(run)
    assert run.batches_unvisited == 0
    assert int(seen.min()) == 1, "lost"
    assert int((seen - 1).sum()) <= perhaps_twice(run) * BATCH
    assert perhaps_twice(run) <= (2 if name == "hogwild" else 0)
    assert run.samples == ROWS[name]


@pytest.mark.thorough
@pytest.mark.parametrize("die", ["before the step", "after the step"])
def test_a_death_between_two_reports_is_counted_exactly(die: str) -> None:
    rows = ROWS["hogwild"]
    run = ps.run(partial(counting, name="hogwild", die=die), ps.hogwild(), workers=WORKERS, timeout_s=60)
    assert [one.left for one in run.workers].count("died") == 1
    assert torch.equal(visits(run), torch.ones(rows, dtype=torch.long))
    assert (perhaps_twice(run), run.batches_unvisited) == (0, 0)
    assert (run.samples, run.folded, run.version) == (rows, rows // BATCH, rows // BATCH)


@pytest.mark.thorough
def test_a_death_while_writing_into_shared_memory_is_reported() -> None:
    """The batch may be in the weights, so it is trained again: the summary counts it."""
    run = ps.run(partial(counting, name="hogwild", die="in the step"), ps.hogwild(), workers=WORKERS, timeout_s=60)
    seen = visits(run)
    assert (int(seen.min()), int((seen == 2).sum())) == (1, BATCH)
    assert perhaps_twice(run) == 1
    shown = " ".join(str(run).split())
    assert "worker 1 died while it wrote into shared memory: batches possibly folded twice: 1" in shown
    assert "updates that workers lost by writing at the same time, without a lock, are not counted" in shown


def freezing(worker: ps.Worker) -> None:
    """One epoch of 16 batches; worker 1 hangs after its fifth step."""
    model = nn.Embedding(64, 1)
    nn.init.zeros_(model.weight)
    loader = DataLoader(TensorDataset(torch.arange(64)), batch_size=BATCH)
    wrapped, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=2.0), loader)
    for step, (samples,) in enumerate(loader, start=1):
        optimizer.zero_grad()
        wrapped(samples).sum().backward()
        optimizer.step()
        if worker.rank == 1 and step == 5:
            time.sleep(600)


@pytest.mark.thorough
def test_what_a_frozen_last_worker_folded_is_counted() -> None:
    run = ps.run(freezing, ps.hogwild(), workers=2, timeout_s=3, data="shards")
    assert [one.left for one in run.workers] == ["finished", "evicted"]
    assert int((visits(run) > 0).sum()) == run.samples == 13 * BATCH
    assert (run.folded, run.batches_unvisited) == (13, 3)
