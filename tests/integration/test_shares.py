"""Global batches that are cut by the workers' speeds, and gradients of batches of unlike sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cluster import Cluster, Constant, Crash, Group, LogNormal, Restart

HERE = ps.allreduce().in_memory
UNLIKE = Cluster((Group(1, Constant(0.06)), Group(1, Constant(0.02))))
STEPS, BATCH = 24, 32


def parts() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(STEPS, BATCH, 4, generator=source) * torch.arange(1, 1 + BATCH).reshape(-1, 1) / 10
    targets = torch.randn(STEPS, BATCH, 1, generator=source)
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), inputs, targets


def plain(steps: int = STEPS) -> dict[str, torch.Tensor]:
    """One process with the whole batches."""
    model, optimizer, inputs, targets = parts()
    for step in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[step]), targets[step]).backward()
        optimizer.step()
    return model.state_dict()


def told(worker: ps.Worker, passes: int = 1) -> None:
    """Each worker has a batch size of its own, and says so before each backward pass."""
    model, optimizer, inputs, targets = parts()
    model, optimizer = worker.prepare(model, optimizer)
    mine = (slice(0, 8), slice(8, 11), slice(11, 32))[worker.rank]
    for step in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            worker.count(mine.stop - mine.start)
            (nn.functional.mse_loss(model(inputs[step, mine]), targets[step, mine]) / passes).backward()
        optimizer.step()


def shared(worker: ps.Worker, rounds: int | None = None, see: Callable[[int], object] = abs) -> None:
    model, optimizer, inputs, targets = parts()
    model, optimizer = worker.prepare(model, optimizer)
    while (step := worker.version) < STEPS:
        mine = worker.share_of_batch(BATCH, rounds)
        see(mine.stop - mine.start)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs[step, mine]), targets[step, mine]).backward()
        optimizer.step()


def close(run: ps.Run, other: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(run.state_dict[name], one, rtol=0, atol=1e-6) for name, one in other.items())


def traced(rounds: int | None = None) -> tuple[Callable[[ps.Worker], None], dict[tuple[int, int], int]]:
    """The loop, and the share of each worker at each version."""
    taken: dict[tuple[int, int], int] = {}

    def train(worker: ps.Worker) -> None:
        shared(worker, rounds, lambda share: taken.update({(worker.rank, worker.version): share}))

    return train, taken


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), HERE])
def test_batch_sizes_of_their_own_make_the_gradient_of_the_union(strategy: ps.Strategy, tmp_path: Path) -> None:
    run = ps.run(told, strategy, workers=3, engine=ps.Simulated("uniform"), runs=tmp_path)
    assert close(run, plain())
    assert run.samples == STEPS * BATCH
    assert ps.replay(run.folder, told).identical


def test_under_allreduce_each_of_two_passes_weighs_by_its_samples() -> None:
    assert close(ps.run(partial(told, passes=2), HERE, workers=3, engine=ps.Simulated("uniform")), plain())


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), HERE])
def test_shares_by_speed_have_unlike_workers_take_equally_long(strategy: ps.Strategy, tmp_path: Path) -> None:
    run = ps.run(shared, strategy, workers=2, engine=ps.Simulated(UNLIKE), runs=tmp_path)
    assert close(run, plain())
    assert run.samples == STEPS * BATCH
    assert run.wall_s == pytest.approx(2 * 0.06 + (STEPS - 2) * 0.03), "two even rounds, then equally long steps"
    assert run.waiting_share < 0.1
    assert ps.replay(run.folder, shared).identical


def test_shares_stay_after_so_many_rounds() -> None:
    jittery = Cluster((Group(1, LogNormal(0.06, 0.2)), Group(1, LogNormal(0.02, 0.2))))
    for rounds, changes in ((5, False), (None, True)):
        train, taken = traced(rounds)
        ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated(jittery))
        assert (len({taken[0, version] for version in range(6, STEPS)}) > 1) == changes


def test_who_is_gone_has_no_share_and_who_comes_has_one_again(tmp_path: Path) -> None:
    faults = Crash(worker=1, at_s=0.2), Restart(worker=1, at_s=0.5)
    cluster = Cluster((Group(2, Constant(0.04)), Group(1, Constant(0.08))), faults=faults)
    train, taken = traced()
    run = ps.run(train, "sync_sgd", workers=3, engine=ps.Simulated(cluster), runs=tmp_path)
    assert run.version == STEPS
    absent = {version for version in range(STEPS) if (1, version) not in taken}
    assert {taken[0, version] for version in list(absent)[2:]} == {21}, "two thirds"
    assert taken[0, STEPS - 1] == taken[1, STEPS - 1] == 13, "two fifths"
    assert ps.replay(run.folder, train).identical


def test_a_run_that_goes_on_shares_by_the_speeds_that_it_knew(tmp_path: Path) -> None:
    train, taken = traced()
    run = partial(ps.run, train, "sync_sgd", workers=2, engine=ps.Simulated(UNLIKE), runs=tmp_path)
    cut_short = run(checkpoint=ps.Checkpoint(every_s=0.1), until=ps.Until(steps=20))
    taken.clear()
    on = run(resume=cut_short.folder)
    assert 0 < cut_short.version < on.version == STEPS
    assert close(on, plain())
    assert {share for (worker, _), share in taken.items() if not worker} == {8}
    assert ps.replay(on.folder, train).identical


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["sync_sgd", "allreduce"])
def test_real_workers_share_batches_and_are_replayed(strategy: str, tmp_path: Path) -> None:
    pace: dict[str, Any] = {"pace": ps.Pace(step_s=0.01), "faults": [ps.Slow(worker=0, factor=3)]}
    run = ps.run(shared, strategy, workers=2, runs=tmp_path, timeout_s=30, **pace)
    assert close(run, plain())
    assert run.samples == STEPS * BATCH
    assert ps.replay(run.folder, shared).identical


@pytest.mark.thorough
def test_torchs_all_reduce_refuses_unlike_counts() -> None:
    with pytest.raises(ps.ConfigurationError, match="other numbers of samples on other workers"):
        ps.run(told, ps.allreduce("torch"), workers=3, timeout_s=60)


def told_by_one(worker: ps.Worker) -> None:
    model, optimizer, inputs, _ = parts()
    model, optimizer = worker.prepare(model, optimizer)
    if worker.rank:
        worker.count(BATCH)
    model(inputs[0]).sum().backward()
    optimizer.step()


def test_under_allreduce_counts_of_some_workers_alone_are_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="on every worker or on none"):
        ps.run(told_by_one, HERE, workers=2, engine=ps.Simulated("uniform"))


def beside_a_loader(worker: ps.Worker) -> None:
    model, optimizer, inputs, _ = parts()
    worker.prepare(model, optimizer, torch.utils.data.DataLoader(inputs, batch_size=8))  # type: ignore[arg-type]
    worker.share_of_batch(BATCH)


def of_too_few(worker: ps.Worker) -> None:
    worker.prepare(*parts()[:2])
    worker.share_of_batch(1)


@pytest.mark.parametrize(
    ("train", "strategy", "why"),
    [
        (shared, "async_sgd", "wait for each other at every step"),
        (shared, "local_sgd", "wait for each other at every step"),
        (shared, ps.first_of(1), "wait for each other at every step"),
        (beside_a_loader, "sync_sgd", "not beside a prepared loader"),
        (of_too_few, "sync_sgd", "one sample or more for each of the 2 workers"),
    ],
)
def test_where_there_is_nothing_to_share_it_says_why(train: Any, strategy: Any, why: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=why):
        ps.run(train, strategy, workers=2, engine=ps.Simulated("uniform"))
