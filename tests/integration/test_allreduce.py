"""All-reduce by torch, with real processes: what it equals, and what a death costs."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import plesio as ps
from plesio.worker.exchanges.all_reduce.exchange import AllReduceExchange
from plesio.worker.exchanges.all_reduce.replicated import ReplicatedModel
from support import loops, replicas

TORCHS = ps.allreduce("torch")


@pytest.mark.parametrize(
    "build", [loops.batch_norm, *(pytest.param(one, marks=pytest.mark.slow) for one in (loops.Tied, loops.Mixed))]
)
def test_replicas_have_equal_bits_after_every_step(build: loops.Build, tmp_path: Path) -> None:
    """Though the last step of an epoch has a batch for three, which they share."""
    train = partial(replicas.watched, folder=str(tmp_path), build=build, rows=80, by_epoch=True)
    run = ps.run(train, TORCHS, workers=3)
    first, *others = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert len(first) == run.steps == 12
    assert len(set(first)) == 12
    assert others == [first, first]
    assert run.samples == 240
    assert (run.discarded, run.incidents) == ({}, ())
    assert list(run.state_dict) == list(build().state_dict())


@pytest.mark.thorough
def test_it_matches_sync_sgd_on_shards(tmp_path: Path) -> None:
    """To rounding, where the workers have whole batches."""
    train = partial(replicas.watched, folder=str(tmp_path), rows=72)
    server, run = (ps.run(train, strategy, workers=3, data="shards") for strategy in (ps.sync_sgd(), TORCHS))
    for name, value in server.state_dict.items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_those_of_ddp_whoever_reduces() -> None:
    train = partial(loops.follow, build=loops.batch_norm, optimizers=loops.momentum, steps=6)
    torchs = ps.run(train, TORCHS, workers=2).state_dict
    for strategy in (TORCHS, ps.allreduce().in_memory):
        ours = ps.run(train, strategy, workers=2, engine=ps.Simulated("uniform")).state_dict
        torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "build", [loops.batch_norm, *(pytest.param(one, marks=pytest.mark.slow) for one in (loops.Tied, loops.Mixed))]
)
def test_one_worker_is_plain_pytorch(build: loops.Build) -> None:
    """Bit for bit, with buffers, tied weights and layers used now and then."""
    train = partial(loops.follow, build=build, optimizers=loops.momentum, steps=12)
    got = ps.run(train, TORCHS, workers=1).state_dict
    for name, value in loops.plain_pytorch(build, loops.momentum, 12).items():
        assert torch.equal(got[name], value), name


def test_parameters_that_no_worker_uses_are_left_alone(tmp_path: Path) -> None:
    run = ps.run(partial(replicas.forked, folder=str(tmp_path)), TORCHS, workers=2)
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    before = replicas.Forked().state_dict()
    moved = {name for name, value in run.state_dict.items() if not torch.equal(value, before[name])}
    assert moved == {"left.weight", "left.bias", "right.weight", "right.bias"}


def counting(worker: ps.Worker, rows: int, momentum: float = 0.0) -> list[int]:
    """Each visit of a sample takes 1 from its own weight, times the workers."""
    model = nn.Linear(rows, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(worker.workers), momentum=momentum)
    loader = DataLoader(TensorDataset(torch.eye(rows)), batch_size=2, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    counts = []
    for _ in range(2):
        for (some,) in loader:
            optimizer.zero_grad()
            model(some).sum().backward()
            optimizer.step()
            counts.append(len(some))
    return counts


@pytest.mark.thorough
def test_after_a_death_all_begin_anew_and_each_batch_counts_once() -> None:
    run = ps.run(
        partial(counting, rows=480),
        TORCHS,
        workers=3,
        pace=ps.Pace(step_s=0.02),
        faults=[ps.Kill(worker=1, after_s=1.5)],
    )
    what = [one.what for one in run.incidents]
    assert what[0].startswith("worker 1 died at version")
    assert what[-1] == "the workers have begun anew"
    assert torch.equal(run.state_dict["weight"].round(), torch.full((1, 480), -2.0))
    assert (run.samples, run.steps, run.batches_unvisited) == (960, 160, 0)


def dies(worker: ps.Worker, at: int) -> None:
    model = loops.mlp()
    model, optimizer = worker.prepare(model, loops.momentum(model))
    for step in range(at + 1):
        optimizer.zero_grad()
        model(torch.ones(1, loops.FEATURES)).sum().backward()
        if step == at and worker.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()


@pytest.mark.thorough
def test_a_death_that_comes_again_and_again_ends_the_run() -> None:
    with pytest.raises(ps.WorkerLostError, match="every worker died"):
        ps.run(partial(dies, at=0), TORCHS, workers=2)


def dies_once(worker: ps.Worker, folder: str, flag: Path | None) -> None:
    if flag is not None and worker.rank == 1 and not flag.exists():
        passes = itertools.count(1)

        def die(*_: object) -> None:
            if next(passes) == 8:
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        register_optimizer_step_pre_hook(die)
    replicas.watched(worker, folder)


@pytest.mark.thorough
def test_with_checkpoints_a_death_changes_nothing(tmp_path: Path) -> None:
    """All take up the weights and the momentum of what was shown last, and the data that came after it."""
    whole, hurt = (
        ps.run(
            partial(dies_once, folder=str(tmp_path), flag=flag),
            TORCHS,
            workers=2,
            checkpoint=ps.Checkpoint(folder=tmp_path / ("whole" if flag is None else "hurt")),
        )
        for flag in (None, tmp_path / "died")
    )
    assert hurt.incidents
    assert hurt.steps == whole.steps == 18
    for name, value in whole.state_dict.items():
        assert torch.equal(hurt.state_dict[name], value), name
    with pytest.raises(
        ps.CheckpointError, match="2 batches a step, one for each worker that all-reduces, and this one has 3"
    ):
        ps.run(partial(dies_once, folder=str(tmp_path), flag=None), TORCHS, workers=3, resume=tmp_path / "whole")


def test_a_non_finite_mean_is_skipped_by_all(tmp_path: Path) -> None:
    """All replicas see the same mean and skip it, with their buffers."""
    train = partial(replicas.poisoned_data, folder=str(tmp_path), at=3)
    run = ps.run(train, TORCHS, workers=2)
    assert run.discarded == {"not finite": 1}
    assert run.steps == 8
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    assert (tmp_path / "0.txt").read_text().startswith("1 ")
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())


@pytest.mark.slow
def test_a_non_finite_mean_ends_the_run_where_that_is_asked_for(tmp_path: Path) -> None:
    train = partial(replicas.poisoned_data, folder=str(tmp_path), at=3)
    with pytest.raises(ps.NonFiniteError, match=r"on_nonfinite='raise'"):
        ps.run(train, TORCHS, workers=2, on_nonfinite="raise")


@pytest.mark.thorough
def test_gradients_by_the_model_given_to_prepare_are_averaged_too(tmp_path: Path) -> None:
    ends = []
    for how in ("", "plain model"):
        run = ps.run(partial(replicas.misused, folder=str(tmp_path), how=how), TORCHS, workers=2)
        assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
        ends.append(run.state_dict)
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value)


def test_other_learning_rates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ps.PlesioError, match=r"other hyper-parameters|no longer the same"):
        ps.run(partial(replicas.misused, folder=str(tmp_path), how="another rate"), TORCHS, workers=2)


@pytest.mark.slow
def test_unequal_passes_end_by_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(
        ps.DeadlineError, match=r"rank \d of 2: the others did not come .* within 30 s: .*equally often"
    ):
        ps.run(partial(replicas.misused, folder=str(tmp_path), how="unequal"), TORCHS, workers=2, timeout_s=30)


@pytest.mark.thorough
def test_all_stop_at_the_same_step(tmp_path: Path) -> None:
    run = ps.run(
        partial(replicas.without_a_loader, folder=str(tmp_path)),
        TORCHS,
        workers=2,
        faults=[ps.Slow(worker=1, factor=4)],
        pace=ps.Pace(step_s=0.005),
        evaluate=lambda model: {"sum": float(next(model.parameters()).sum())},
        evaluate_every_s=0.2,
        until=ps.Until(steps=100),
    )
    assert run.ended == "100 steps were up"
    assert {int(path.read_text()) for path in tmp_path.iterdir()} == {run.steps}
    assert len({one.metrics["sum"] for one in run.history}) > 1
    assert run.history[-1].version == run.version


class Numbers(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.eye(11))


def streamed(worker: ps.Worker) -> int:
    model = nn.Linear(11, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Numbers(), batch_size=None))
    steps = 0
    for one in loader:
        optimizer.zero_grad()
        model(one).sum().backward()
        optimizer.step()
        steps += 1
    return steps


def test_a_stream_ends_for_all_when_one_has_no_more() -> None:
    assert ps.run(streamed, TORCHS, workers=2).returned == [5, 5]


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the default group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_replicated_model_behaves_like_the_users_model(alone: None) -> None:
    """In names, attributes, modes, indices and copies."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.note = "mine"
    wrapped = ReplicatedModel(model)
    assert list(wrapped.state_dict()) == list(model.state_dict())
    assert [name for name, _ in wrapped.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert list(wrapped.parameters()) == list(model.parameters())
    assert (wrapped.note, len(wrapped), wrapped[0], list(wrapped)) == ("mine", 2, model[0], list(model))
    wrapped.eval()
    assert not wrapped.training
    assert not model[1].training
    model.train()
    assert wrapped.training
    wrapped.note = "yours"
    assert model.note == "yours"
    twin = copy.deepcopy(wrapped)
    assert type(twin) is nn.Sequential
    assert twin[0].weight is not model[0].weight
    wrapped.load_state_dict(twin.state_dict())
    assert repr(wrapped) == repr(model)
    inputs = torch.randn(5, 3)
    wrapped(inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not hasattr(ReplicatedModel, "__len__")
    with pytest.raises(AttributeError, match="Sequential"):
        _ = wrapped.nothing


def test_forward_keeps_its_signature_and_may_be_wrapped(alone: None) -> None:
    """Trainers read the signature, and mixed precision wraps forward."""

    class Pair(nn.Linear):
        def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(left if right is None else left + right)

    model, calls = Pair(3, 2), []
    wrapped = ReplicatedModel(model)
    assert inspect.signature(wrapped.forward) == inspect.signature(model.forward)
    before = wrapped.forward

    def around(*args: torch.Tensor) -> torch.Tensor:
        calls.append(len(args))
        result: torch.Tensor = before(*args)
        return result

    wrapped.forward = around
    rows = torch.randn(4, 3)
    output = wrapped(rows, rows)
    assert torch.equal(output, model(rows, rows))
    assert calls == [2]
    output.sum().backward()
    assert model.weight.grad is not None


def test_what_is_left_for_checkpoints_is_a_part_of_showing_and_may_take_5_percent_with_it() -> None:
    timer = SimpleNamespace(now_s=lambda: 10.25)
    exchange: Any = SimpleNamespace(pacer=timer, _sent_s=10.0, _exchanged_s=8.75, _kept_s=0.25, _steps=100)
    assert AllReduceExchange._grants(exchange, 1) == 100 * 0.5 / 0.05
