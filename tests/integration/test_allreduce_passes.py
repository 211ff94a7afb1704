"""All-reduce with more than one backward pass for each forward pass: correct, or refused."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.errors import ModelMismatchError
from support import loops, replicas

STEPS = 3
Backward = Callable[[Any, torch.Tensor, int], None]
LOOPS: list[Any] = []


def accepted(quick: bool) -> Callable[[Backward], Backward]:
    """A row of the table below; those that are not quick are left to `make test-all`."""

    def add(loop: Backward) -> Backward:
        LOOPS.append(pytest.param(loop, id=loop.__name__, marks=() if quick else pytest.mark.thorough))
        return loop

    return add


def reduced(train: Callable[..., Any], workers: int = 2, **options: Any) -> ps.Run:
    return ps.run(partial(train, **options), ps.allreduce("torch"), workers=workers, timeout_s=20)


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


@accepted(quick=False)
def two_backward_passes(model: Any, rows: torch.Tensor, rank: int) -> None:
    out = model(rows)
    size(out).backward(retain_graph=True)
    out.abs().mean().backward()


@accepted(quick=True)
def two_forward_then_two_backward_passes(model: Any, rows: torch.Tensor, rank: int) -> None:
    first, second = model(rows), model(rows + 1)
    size(first).backward()
    size(second).backward()


@accepted(quick=False)
def penalty_before(model: Any, rows: torch.Tensor, rank: int) -> None:
    penalty(model, rank).backward()
    size(model(rows)).backward()


@accepted(quick=True)
def penalty_within_accumulation(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows)).backward()
    penalty(model, rank).backward()
    size(model(rows + 1)).backward()


@accepted(quick=True)
def penalty_on_other_parts(model: Any, rows: torch.Tensor, rank: int) -> None:
    """Of each worker on another part, which no forward pass used."""
    size(model(rows)).backward()
    penalty(model.right if rank else model.left, rank).backward()


@accepted(quick=False)
def no_grad_between(model: Any, rows: torch.Tensor, rank: int) -> None:
    out = model(rows)
    with torch.no_grad():
        model(rows + 1)
    size(out).backward()
    with torch.no_grad():
        model(rows + 1)


@accepted(quick=False)
def gradient_penalty(model: Any, rows: torch.Tensor, rank: int) -> None:
    rows = rows.clone().requires_grad_()
    out = model(rows)
    (slope,) = torch.autograd.grad(out.sum(), rows, create_graph=True)
    (size(out) + size(slope)).backward()


@accepted(quick=False)
def edited_alike(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows)).backward()
    for one in model.parameters():
        if one.grad is not None:
            one.grad.mul_(0.5)
            one.grad = one.grad * 2
            one.grad.data = one.grad.data / 3


@accepted(quick=True)
def edited_then_more(model: Any, rows: torch.Tensor, rank: int) -> None:
    edited_alike(model, rows, rank)
    penalty(model, rank).backward()


@accepted(quick=False)
def siamese(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows) - model(rows + 1)).backward()


@accepted(quick=False)
def one_of_two_outputs(model: Any, rows: torch.Tensor, rank: int) -> None:
    size(model(rows, "both")[0]).backward()


def rows_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def trained(worker: ps.Worker, backward: Backward) -> str:
    model = Two()
    model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, rows_of(worker.rank, step), worker.rank)
        optimizer.step()
    return replicas.weights(model)


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


@pytest.mark.few(1)
@pytest.mark.parametrize("backward", LOOPS)
def test_every_gradient_is_the_mean_over_workers(backward: Backward) -> None:
    run = reduced(trained, workers=3, backward=backward)
    assert len({*run.returned}) == 1
    assert run.steps == STEPS
    for name, value in expected(backward, 3).items():
        torch.testing.assert_close(run.state_dict[name], value, rtol=1e-4, atol=1e-6)


def penalty_between(model: Any, rows: torch.Tensor, rank: int) -> None:
    out = model(rows)
    penalty(model, rank).backward()
    size(out).backward()


def sparse(worker: ps.Worker) -> str:
    """Two backward passes through one forward pass; the second, through the table only."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    for _ in range(STEPS):
        optimizer.zero_grad()
        size(model(torch.tensor([worker.rank, 8]))).backward()
        model[0](torch.tensor([3 + worker.rank])).sum().backward()
        optimizer.step()
    return replicas.weights(model)


def test_sparse_gradients_are_averaged() -> None:
    run = reduced(sparse)
    assert len({*run.returned}) == 1
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
        optimizer.step()
        if how == "written" and mine:
            model.idle.weight.data[0, 0] += 1e-6
        if how == "loaded" and mine:
            model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        worker.log(step=step)


def accumulating(worker: ps.Worker, rows: int, on: bool) -> str:
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
    return replicas.weights(model)


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "on", "steps"), [(100, True, 9), (96, False, 9)], ids=["counted on", "even"])
def test_gradients_accumulate_across_epochs(rows: int, on: bool, steps: int) -> None:
    """25 batches an epoch for 2 workers, counted across epochs; or 24, counted anew in each."""
    run = reduced(accumulating, rows=rows, on=on)
    assert run.steps == steps
    assert len({*run.returned}) == 1


def copied(worker: ps.Worker) -> None:
    """Copies and pickles of a model under all-reduce."""
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.ones(1, loops.FEATURES)).sum().backward()
    model(torch.ones(1, loops.FEATURES)).sum().backward()
    optimizer.step()


@pytest.mark.thorough
def test_backward_through_a_copy_is_not_reduced() -> None:
    assert reduced(copied).steps == 1


class Policy(nn.Linear):
    """Says what it found by an object that torch does not look into."""

    def forward(self, rows: torch.Tensor) -> Any:
        return torch.distributions.Categorical(logits=super().forward(rows))


def by_an_object(worker: ps.Worker) -> None:
    own = Policy(4, 2)
    model, optimizer = worker.prepare(own, loops.sgd(own))
    for _ in range(STEPS):
        optimizer.zero_grad()
        (-model(torch.ones(8, 4)).log_prob(torch.zeros(8)).mean()).backward()
        optimizer.step()


def tracing(worker: ps.Worker) -> None:
    own: Any = torch.jit.trace(nn.Linear(4, 2), torch.ones(8, 4))
    worker.prepare(own, loops.sgd(own))


TWICE = "mark a variable ready only once"
"""As DistributedDataParallel says of parameters that it took for unused, and that a backward pass reaches."""
TENSORS = r"ready only once(.|\n)*return tensors, or tuples(.|\n)*such as sync_sgd"
DIFFER = r"after \d+ steps they differ in"
TRACED = r"torch\.jit traced or scripted cannot be wrapped.*such as sync_sgd"


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("train", "error", "words"),
    [
        (partial(odd_one_out, how="gradient edited"), ModelMismatchError, DIFFER),
        pytest.param(
            partial(odd_one_out, how="penalty"),
            ps.DeadlineError,
            "only some call backward.. on one more loss",
            marks=pytest.mark.slow,
        ),
        pytest.param(partial(odd_one_out, how="backward"), ps.DeadlineError, "equally often", marks=pytest.mark.slow),
        pytest.param(partial(odd_one_out, how="written"), ModelMismatchError, DIFFER, marks=pytest.mark.thorough),
        (partial(odd_one_out, how="loaded"), ModelMismatchError, "as it does with load_state_dict on one worker only"),
        (partial(trained, backward=penalty_between), ps.WorkerError, TWICE),
        (by_an_object, ps.WorkerError, TENSORS),
        (tracing, ps.PlesioError, TRACED),
    ],
)
def test_what_would_be_wrong_in_silence_is_refused(train: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        reduced(train, workers=3)


@pytest.mark.thorough
def test_a_pass_that_others_multiply_by_zero_is_accepted() -> None:
    assert reduced(odd_one_out, workers=3, how="penalty of all").steps == 30


def with_an_undefined_gradient(worker: ps.Worker) -> bool:
    """Autograd calls hooks for it, and makes no gradient; weight decay would show that there was one."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model, optimizer = worker.prepare(model, optimizer)
    before = model.weight.detach().clone()
    torch._C._functions.UndefinedGrad()(model(torch.ones(1, 3)).sum()).backward()  # type: ignore[attr-defined]
    nothing = model.weight.grad is None
    optimizer.step()
    return nothing and torch.equal(model.weight, before)


@pytest.mark.thorough
def test_an_undefined_gradient_is_none() -> None:
    assert ps.run(with_an_undefined_gradient, "allreduce", workers=2).returned == [True, True]
