"""All-reduce with more than one backward pass for each forward pass: correct, or refused."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.errors import ModelMismatchError
from support import loops, replicas

STEPS = 3


class Two(nn.Module):
    """Two heads on a body, and a part that no forward pass uses; enough for several buckets."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.wide = nn.Linear(4, 600), nn.Linear(600, 600)
        self.left, self.right, self.idle = nn.Linear(600, 2), nn.Linear(600, 2), nn.Linear(3, 3)

    def forward(self, rows: torch.Tensor, which: str = "left") -> Any:
        hidden = torch.tanh(self.wide(torch.tanh(self.body(rows))))
        if which == "both":
            return self.left(hidden), self.right(hidden)
        return getattr(self, which)(hidden)


def size(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def penalty(model: nn.Module, rank: int) -> torch.Tensor:
    total: Any = sum(one.square().sum() for one in model.parameters())
    return total * (rank + 1) / 1000


def two_backward_passes(model: Any, rows: torch.Tensor, rank: int) -> None:
    out = model(rows)
    size(out).backward(retain_graph=True)
    out.abs().mean().backward()


def two_forward_then_two_backward_passes(model: Any, rows: torch.Tensor, rank: int) -> None:
    first, second = model(rows), model(rows + 1)
    size(first).backward()
    size(second).backward()


def penalty_after(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows)).backward()
    penalty(model, rank).backward()


def penalty_before(model: Any, rows: torch.Tensor, rank: int) -> None:
    penalty(model, rank).backward()
    size(model(rows)).backward()


def penalty_within_accumulation(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows)).backward()
    penalty(model, rank).backward()
    size(model(rows + 1)).backward()


def penalty_on_other_parts(model: Any, rows: torch.Tensor, rank: int) -> None:
    """Of each worker on another part, which no forward pass used."""
    size(model(rows)).backward()
    penalty(model.right if rank else model.left, rank).backward()


def no_grad_between(model: Any, rows: torch.Tensor, rank: int) -> None:
    out = model(rows)
    with torch.no_grad():
        model(rows + 1)
    size(out).backward()
    with torch.no_grad():
        model(rows + 1)


def gradient_penalty(model: Any, rows: torch.Tensor, rank: int) -> None:
    rows = rows.clone().requires_grad_()
    out = model(rows)
    (slope,) = torch.autograd.grad(out.sum(), rows, create_graph=True)
    (size(out) + size(slope)).backward()


def edited_alike(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows)).backward()
    for one in model.parameters():
        if one.grad is not None:
            one.grad.mul_(0.5)
            one.grad = one.grad * 2


def given_other_data(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows)).backward()
    for one in model.parameters():
        if one.grad is not None:
            one.grad.data = one.grad.data / 2


def edited_then_more(model: Any, rows: torch.Tensor, rank: int) -> None:
    edited_alike(model, rows, rank)
    penalty(model, rank).backward()


def siamese(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows) - model(rows + 1)).backward()


def one_of_two_outputs(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows, "both")[0]).backward()


LOOPS = [
    two_backward_passes,
    two_forward_then_two_backward_passes,
    penalty_after,
    penalty_before,
    penalty_within_accumulation,
    penalty_on_other_parts,
    no_grad_between,
    gradient_penalty,
    edited_alike,
    given_other_data,
    edited_then_more,
    siamese,
    one_of_two_outputs,
]
Backward = Callable[[Any, torch.Tensor, int], None]


def rows_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def trained(worker: ps.Worker, folder: str, backward: Backward) -> None:
    model = Two()
    model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, rows_of(worker.rank, step), worker.rank)
        optimizer.step()
    Path(folder, f"{worker.rank}.txt").write_text(replicas.weights(model))


def expected(backward: Backward, workers: int) -> dict[str, torch.Tensor]:
    """Steps by the mean of the gradients that plain PyTorch computes for each worker."""
    model = Two()
    optimizer = loops.momentum(model)
    for step in range(STEPS):
        twins = [copy.deepcopy(model) for _ in range(workers)]
        for rank, twin in enumerate(twins):
            backward(twin, rows_of(rank, step), rank)
        for one, *theirs in zip(model.parameters(), *(twin.parameters() for twin in twins), strict=True):
            have = [twin.grad for twin in theirs if twin.grad is not None]
            one.grad = torch.stack(have).sum(0) / workers if have else None
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("backward", LOOPS, ids=lambda one: one.__name__)
def test_every_gradient_is_the_mean_over_workers(backward: Backward, tmp_path: Path) -> None:
    run = ps.run(
        partial(trained, folder=str(tmp_path), backward=backward), ps.allreduce("torch"), workers=3, timeout_s=20
    )
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    assert run.steps == STEPS
    for name, value in expected(backward, 3).items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-4, atol=1e-6)


def penalty_between(model: Any, rows: torch.Tensor, rank: int) -> None:
    out = model(rows)
    penalty(model, rank).backward()
    size(out).backward()


def siamese_of_different_heads(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows) - model(rows, "right")).backward()


@pytest.mark.parametrize("backward", [penalty_between, siamese_of_different_heads], ids=lambda one: one.__name__)
def test_parameters_ready_twice_are_refused_as_in_torch(backward: Backward, tmp_path: Path) -> None:
    """A backward pass reaches parameters that DistributedDataParallel took for unused."""
    with pytest.raises(ps.WorkerError, match="mark a variable ready only once"):
        ps.run(
            partial(trained, folder=str(tmp_path), backward=backward), ps.allreduce("torch"), workers=2, timeout_s=20
        )


def sparse(worker: ps.Worker, folder: str) -> None:
    """Two backward passes through one forward pass; the second, through the table only."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    for _ in range(STEPS):
        optimizer.zero_grad()
        size(model(torch.tensor([worker.rank, 8]))).backward()
        model[0](torch.tensor([3 + worker.rank])).sum().backward()
        optimizer.step()
    Path(folder, f"{worker.rank}.txt").write_text(replicas.weights(model))


def test_sparse_gradients_are_averaged(tmp_path: Path) -> None:
    run = ps.run(partial(sparse, folder=str(tmp_path)), ps.allreduce("torch"), workers=2, timeout_s=20)
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1
    torch.manual_seed(1)
    before = nn.Embedding(9, 4).weight
    torch.testing.assert_close(run.state_dict["0.weight"][3:5], before[3:5] - STEPS * 0.1 / 2)
    assert torch.equal(run.state_dict["0.weight"][5:8], before[5:8])


def odd_one_out(worker: ps.Worker, how: str) -> None:
    model = Two()
    model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
    for step in range(30):
        optimizer.zero_grad()
        mine = worker.rank == 1 and step == 2
        if how != "backward" or not mine:
            size(model(rows_of(worker.rank, step))).backward()
        if how == "penalty" and mine:
            penalty(model, 1).backward()
        if how == "penalty of all":
            (penalty(model, 1) * mine).backward()
        if how == "gradient edited" and mine:
            model.left.weight.grad.mul_(2)
        if how == "gradient of its own":
            loss = size(model(rows_of(worker.rank, step)))
            for one, extra in zip(
                model.left.parameters(), torch.autograd.grad(loss, list(model.left.parameters())), strict=True
            ):
                one.grad += extra
        optimizer.step()
        if how == "written" and mine:
            model.idle.weight.data[0, 0] += 1e-6
        if how == "loaded" and mine:
            model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        worker.log(step=step)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        pytest.param("penalty", ps.DeadlineError, "only some call backward.. on one more loss", marks=pytest.mark.slow),
        pytest.param("backward", ps.DeadlineError, "equally often", marks=pytest.mark.slow),
        ("gradient edited", ModelMismatchError, r"after \d+ steps they differ in"),
        ("gradient of its own", ModelMismatchError, r"after \d+ steps they differ in"),
        ("written", ModelMismatchError, r"after \d+ steps they differ in"),
        ("loaded", ModelMismatchError, "as it does with load_state_dict on one worker only"),
    ],
)
def test_a_pass_on_one_worker_alone_is_refused(how: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ps.run(partial(odd_one_out, how=how), ps.allreduce("torch"), workers=3, timeout_s=20)


def test_a_pass_that_others_multiply_by_zero_is_accepted() -> None:
    assert (
        ps.run(partial(odd_one_out, how="penalty of all"), ps.allreduce("torch"), workers=3, timeout_s=20).steps == 30
    )


def accumulating(worker: ps.Worker, folder: str, rows: int, on: bool) -> None:
    """A step for every 4 batches, counted on from epoch to epoch or anew in each."""
    inputs, labels = loops.data(rows)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True)
    model = loops.mlp()
    model, optimizer, loader = worker.prepare(model, loops.momentum(model), loader)
    counted = itertools.count()
    for _ in range(3):
        for number, (some, wanted) in enumerate(loader):
            (loops.loss_of(model, some, wanted) / 4).backward()
            if ((next(counted) if on else number) + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    Path(folder, f"{worker.rank}.txt").write_text(replicas.weights(model))


@pytest.mark.parametrize(("rows", "on", "steps"), [(100, True, 9), (96, False, 9)], ids=["counted on", "even"])
def test_gradients_accumulate_across_epochs(rows: int, on: bool, steps: int, tmp_path: Path) -> None:
    """25 batches an epoch for 2 workers, counted across epochs; or 24, counted anew in each."""
    run = ps.run(
        partial(accumulating, folder=str(tmp_path), rows=rows, on=on), ps.allreduce("torch"), workers=2, timeout_s=20
    )
    assert run.steps == steps
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1


def copied(worker: ps.Worker) -> None:
    """Copies and pickles of a model under all-reduce."""
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.ones(1, loops.FEATURES)).sum().backward()
    model(torch.ones(1, loops.FEATURES)).sum().backward()
    optimizer.step()


def test_backward_through_a_copy_is_not_reduced() -> None:
    assert ps.run(copied, ps.allreduce("torch"), workers=2, timeout_s=20).steps == 1


class Policy(nn.Module):
    """Says what it found by an object that torch does not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(()))

    def forward(self, rows: torch.Tensor, bare: bool = False) -> Any:
        return self.head(rows) if bare else torch.distributions.Categorical(logits=self.head(rows))


def by_an_object(model: Any) -> torch.Tensor:
    return -model(torch.ones(8, 4)).log_prob(torch.zeros(8)).mean()


def by_a_scale(model: Any) -> torch.Tensor:
    return (model(torch.ones(8, 4), bare=True) * model.scale).square().mean()


def follow_policy(worker: ps.Worker, loss: Callable[[Any], torch.Tensor]) -> None:
    own = Policy()
    model, optimizer = worker.prepare(own, loops.sgd(own))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


@pytest.mark.parametrize("loss", [by_an_object, by_a_scale])
def test_ready_only_once_errors_say_to_return_tensors(loss: Callable[[Any], torch.Tensor]) -> None:
    with pytest.raises(ps.WorkerError, match=r"ready only once(.|\n)*return tensors, or tuples(.|\n)*such as sync_sgd"):
        ps.run(partial(follow_policy, loss=loss), ps.allreduce("torch"), workers=2, timeout_s=30)


def tracing(worker: ps.Worker) -> None:
    own: Any = torch.jit.trace(nn.Linear(4, 2), torch.ones(8, 4))
    worker.prepare(own, loops.sgd(own))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_traced_model_is_refused_with_a_remedy() -> None:
    with pytest.raises(ps.PlesioError, match=r"torch\.jit traced or scripted cannot be wrapped.*such as sync_sgd"):
        ps.run(tracing, ps.allreduce("torch"), workers=1, timeout_s=30)
