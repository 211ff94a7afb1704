"""All-reduce with real processes: what it equals, and that it survives departures."""

from __future__ import annotations

import copy
import inspect
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.transport.collective import CurrentGroup, Group, completed
from plesio.worker.exchanges.all_reduce import exchange
from plesio.worker.exchanges.all_reduce.replicated import ReplicatedModel
from support import loops, replicas


def all_bits(folder: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def agree(seen: list[dict[str, str]]) -> bool:
    """Whether all who saw a version saw the same bits."""
    versions = {version for one in seen for version in one}
    return all(len({one[version] for one in seen if version in one}) == 1 for version in versions)


@pytest.mark.parametrize("build", [loops.mlp, loops.Tied, loops.batch_norm, loops.Mixed], ids=lambda one: one.__name__)
def test_replicas_have_equal_bits_at_every_version(build: loops.Build, tmp_path: Path) -> None:
    """Though epochs divide unevenly and the rate falls at each worker's own epoch end."""
    train = partial(replicas.watched, folder=str(tmp_path), build=build, rows=80, by_epoch=True)
    run = ps.run(train, ps.allreduce("torch"), workers=3, data="shards")
    seen = all_bits(tmp_path)
    assert [len(one) for one in seen] == [12, 9, 9]
    assert agree(seen)
    assert run.version == 12
    assert run.folded == 30
    assert run.samples == 240
    assert run.discarded == {}
    assert run.incidents == ()
    assert list(run.state_dict) == list(build().state_dict())


@pytest.mark.parametrize(
    ("build", "optimizers", "rows"),
    [
        (loops.mlp, loops.momentum, 80),
        (loops.batch_norm, loops.momentum, 72),  # where all are there: a server moves buffers part of the way for fewer
        (loops.Tied, loops.sgd, 80),  # without momentum: a server takes nobody's gradient for zero, all-reduce for none
    ],
    ids=["mlp", "batch_norm", "Tied"],
)
def test_allreduce_matches_sync_sgd_on_shards(
    build: loops.Build, optimizers: loops.Optimizers, rows: int, tmp_path: Path
) -> None:
    """To rounding, with the same seed and shards."""
    train = partial(replicas.watched, folder=str(tmp_path), build=build, optimizers=optimizers, rows=rows)
    server, run = (
        ps.run(train, strategy, workers=3, data="shards") for strategy in (ps.sync_sgd(), ps.allreduce("torch"))
    )
    for name, value in server.state_dict.items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [loops.batch_norm, loops.Tied, loops.Mixed], ids=lambda one: one.__name__)
def test_one_worker_is_plain_pytorch(build: loops.Build) -> None:
    """Bit for bit, with buffers, tied weights and layers used now and then."""
    train = partial(loops.follow, build=build, optimizers=loops.momentum, steps=12)
    got = ps.run(train, ps.allreduce("torch"), workers=1).state_dict
    for name, value in loops.plain_pytorch(build, loops.momentum, 12).items():
        assert torch.equal(got[name], value), name


def test_buffers_are_averaged(tmp_path: Path) -> None:
    ps.run(partial(replicas.one_norm_step, folder=str(tmp_path)), ps.allreduce("torch"), workers=3)
    seen = [torch.load(tmp_path / str(rank)) for rank in range(3)]
    mean = torch.stack([alone for alone, _, _ in seen]).mean(0)
    for _, got, count in seen:
        torch.testing.assert_close(got, mean)
        assert torch.equal(got, seen[0][1])
        assert int(count) == 1


def test_missing_gradients_count_as_zero(tmp_path: Path) -> None:
    """Parameters that no worker uses are left alone; the others' missing gradients are counted."""
    run = ps.run(partial(replicas.forked, folder=str(tmp_path)), ps.allreduce("torch"), workers=3)
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    assert run.missing_gradients == 3 * 5 * 4
    before = replicas.Forked().state_dict()
    moved = {name for name, value in run.state_dict.items() if not torch.equal(value, before[name])}
    assert moved == {"left.weight", "left.bias", "right.weight", "right.bias"}


def test_the_others_go_on_after_a_kill(tmp_path: Path) -> None:
    """They stay equal to each other and visit the dead worker's batches."""
    times: list[tuple[float, int]] = []
    train = partial(replicas.watched, folder=str(tmp_path), rows=400, batch=4, epochs=2)
    run = ps.run(
        train,
        ps.allreduce("torch"),
        workers=3,
        pace=ps.Pace(step_s=0.02),
        faults=[ps.Kill(worker=1, after_s=0.5)],
        watch=lambda live: times.append((live.time_s, live.version)),
    )
    assert [one.left for one in run.workers] == ["finished", "died", "finished"]
    assert any(one.worker == 1 and "died" in one.what for one in run.incidents)
    assert run.batches_unvisited == 0
    assert agree(all_bits(tmp_path))
    at_death = max(version for time_s, version in times if time_s <= 0.5)
    assert max(version for time_s, version in times if time_s <= 1.5) > at_death + 5


@pytest.mark.parametrize("how", ["dies amid buckets", "dies amid buckets, unnoticed"])
def test_a_death_during_an_all_reduce_drops_that_step(how: str, tmp_path: Path) -> None:
    """The others count and repeat it, even if one learns of the death only from another."""
    train = partial(replicas.disturbed, folder=str(tmp_path), how=how)
    run = ps.run(train, ps.allreduce("torch"), workers=3, timeout_s=20)
    assert [one.left for one in run.workers] == ["finished", "died", "finished"]
    assert run.discarded == {"the group broke": 2}
    assert run.version == 10
    assert len({(tmp_path / f"{rank}.txt").read_text() for rank in (0, 2)}) == 1


def test_a_worker_that_missed_a_step_takes_over_the_result(tmp_path: Path) -> None:
    """It takes over parameters and optimizer state; the bits are those of a run without faults."""
    ends = set()
    for how in ("", "misses the end"):
        run = ps.run(
            partial(replicas.disturbed, folder=str(tmp_path), how=how), ps.allreduce("torch"), workers=3, timeout_s=20
        )
        assert run.version == 10
        assert run.folded == 30
        ends |= {path.read_text() for path in tmp_path.iterdir()}
    assert len(ends) == 1


def test_a_frozen_worker_is_evicted(tmp_path: Path) -> None:
    """No connection notices a frozen process; the deadline does."""
    train = partial(replicas.disturbed, folder=str(tmp_path), how="frozen")
    run = ps.run(train, ps.allreduce("torch"), workers=3, timeout_s=2)
    assert any("worker 1 was silent for 2 s" in one.what for one in run.incidents)
    assert run.version == 10
    assert run.workers[0].steps == run.workers[2].steps == 10


def test_a_non_finite_mean_is_skipped_by_all(tmp_path: Path) -> None:
    """All replicas see the same mean and skip it, with their buffers."""
    train = partial(replicas.poisoned_data, folder=str(tmp_path), at=3)
    run = ps.run(train, ps.allreduce("torch"), workers=2)
    assert run.discarded == {"not finite": 2}
    assert run.version == 7
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    assert (tmp_path / "0.txt").read_text().startswith("1 ")
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())
    with pytest.raises(ps.NonFiniteError, match=r"step 4 of worker . .* on_nonfinite='raise'"):
        ps.run(train, ps.allreduce("torch"), workers=2, on_nonfinite="raise")


def test_a_replica_with_a_nan_gradient_takes_over_the_others_state() -> None:
    run = ps.run(
        partial(loops.poisoned, who=1, at=4, value=float("nan")), ps.allreduce("torch"), workers=2, timeout_s=20
    )
    assert run.discarded["not finite"] == 1
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("unequal", "equally often"),
        ("plain model", "call the model that prepare returned"),
        ("no backward", "without a gradient to exchange"),
    ],
)
def test_misuse_is_refused(how: str, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(partial(replicas.misused, how=how), ps.allreduce("torch"), workers=2, timeout_s=20)


def groupless(worker: ps.Worker) -> None:
    """No group comes about in this process, for want of descriptors."""

    def group(store: object, *arguments: Any) -> Group:
        if store is not None:
            raise RuntimeError("Too many open files\nException raised from somewhere")
        return Group(None, *arguments)

    exchange.Group = group  # type: ignore[assignment, misc]
    loops.one_step(worker, action="text")


def test_a_group_that_cannot_form_is_an_error() -> None:
    """Without a death, retrying would never end."""
    words = r"workers 0, 1 could not form a group .* tried 6 times in .*torch says: Too many open files\. .*ulimit -n"
    with pytest.raises(ps.DeadlineError, match=words):
        ps.run(groupless, ps.allreduce("torch"), workers=2, timeout_s=20)


def test_all_stop_at_the_same_step(tmp_path: Path) -> None:
    run = ps.run(
        partial(replicas.without_a_loader, folder=str(tmp_path)),
        ps.allreduce("torch"),
        workers=3,
        faults=[ps.Slow(worker=2, factor=4)],
        pace=ps.Pace(step_s=0.005),
        until=ps.Until(seconds=0.5),
    )
    assert "0.5 seconds" in run.ended
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    assert len({one.steps for one in run.workers}) == 1
    assert run.version == run.workers[0].steps


def test_the_end_does_not_wait_for_a_long_step(tmp_path: Path) -> None:
    """The workers waiting for it drop their step."""
    started_s = time.monotonic()
    run = ps.run(
        partial(replicas.without_a_loader, folder=str(tmp_path), slow_s=60.0),
        ps.allreduce("torch"),
        workers=3,
        until=ps.Until(seconds=0.3),
    )
    assert time.monotonic() - started_s < 12
    assert run.version == 3
    assert run.discarded == {"the run ended": 2}
    assert not torch.equal(run.state_dict["0.weight"], loops.mlp().state_dict()["0.weight"])


def test_evaluations_and_waiting_shares_are_recorded() -> None:
    """The lowest worker shares its replica; fast workers wait nine tenths of the time."""
    run = ps.run(
        loops.endless,
        ps.allreduce("torch"),
        workers=4,
        pace=ps.Pace(step_s=0.02),
        faults=[ps.Slow(worker=0, factor=10)],
        evaluate=lambda model: {"sum": float(next(model.parameters()).sum())},
        evaluate_every_s=0.2,
        until=ps.Until(seconds=2.5),
    )
    assert run.workers[0].waiting_share < 0.3
    for one in run.workers[1:]:
        assert 0.6 < one.waiting_share < 0.95
    assert run.ideal_share < 0.35
    assert len(run.history) > 3
    assert len({one.metrics["sum"] for one in run.history}) > 2
    assert run.history[-1].version == run.version
    assert [one.version for one in run.history] == sorted(one.version for one in run.history)


def test_a_replicated_model_behaves_like_the_users_model() -> None:
    """In names, attributes, modes, indices and copies."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model.note = "mine"
    group = Group(None, 0, 0, 1, 1.0)
    wrapped = ReplicatedModel(
        model, CurrentGroup(group), list(model.state_dict())[-3:], lambda bucket: completed(bucket.buffer())
    )
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


def test_forward_keeps_its_signature_and_may_be_wrapped() -> None:
    """Trainers read the signature, and mixed precision wraps forward."""

    class Pair(nn.Linear):
        def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(left if right is None else left + right)

    model, calls = Pair(3, 2), []
    wrapped = ReplicatedModel(
        model, CurrentGroup(Group(None, 0, 0, 1, 1.0)), [], lambda bucket: completed(bucket.buffer())
    )
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


class Taught(nn.Module):
    """A teacher that follows the student, in the same module; it needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(2, 1), nn.Linear(2, 1).requires_grad_(False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.student(rows)
        return output


def taught(worker: ps.Worker) -> None:
    model: nn.Module = Taught()
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.student.parameters(), lr=0.1), None)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        model.teacher.load_state_dict(model.student.state_dict())


def same_weights(model: nn.Module) -> dict[str, float]:
    return {"apart": float((model.student.weight - model.teacher.weight).abs().max())}


def test_writes_to_frozen_parameters_reach_the_result() -> None:
    run = ps.run(taught, ps.allreduce("torch"), workers=2, evaluate=same_weights, timeout_s=20)
    assert torch.equal(run.state_dict["teacher.weight"], run.state_dict["student.weight"])
    assert run.history[-1].metrics == {"apart": 0.0}
