"""What workers do differently for large models steps as torch does: memory that is kept, and fused steps under Hogwild!."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import plesio as ps
from plesio.worker.exchanges.shared_memory import FUSED_LEAST
from support.programs import PYTHON

Make = Callable[[Any], Optimizer]
ROWS = FUSED_LEAST // 4
MADE: dict[str, tuple[Make, bool | None]] = {
    "momentum": (partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01), True),
    "Adam": (partial(Adam, lr=0.01), True),
    "AdamW": (partial(AdamW, lr=0.01), True),
    "plain SGD, which one pass does already": (partial(SGD, lr=0.1), None),
    "the user's own choice": (partial(SGD, lr=0.1, momentum=0.9, foreach=True), None),
    "one by one, as the user chose": (partial(SGD, lr=0.1, momentum=0.9, foreach=False), None),
    "refused by the user": (partial(AdamW, lr=0.01, fused=False), False),
}


class Large(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.rows = nn.Embedding(ROWS, 4, sparse=sparse)

    def forward(self) -> torch.Tensor:
        return self.rows(torch.tensor([1, 5, 5])).square().sum()


def descend(model: nn.Module, optimizer: Optimizer) -> list[bool | None]:
    """Whether each step was torch's fused one."""
    fused: list[bool | None] = []
    for _ in range(4):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        fused.append(optimizer.param_groups[0]["fused"])
    return fused


class Noting:
    """An optimizer's hook that notes how it steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.ways: set[bool | None] = set()
        optimizer.register_step_pre_hook(self)

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        self.ways.add(optimizer.param_groups[0]["fused"])


def train(worker: ps.Worker, make: Make, sparse: bool) -> tuple[list[bool | None], set[bool | None]]:
    model = Large(sparse)
    given = make(model.parameters())
    noting = Noting(given)
    return descend(*worker.prepare(model, given)), noting.ways


@pytest.mark.parametrize("name", MADE)
def test_hogwild_steps_large_tensors_in_one_pass_as_torch_steps_them(name: str) -> None:
    make, fused = MADE[name]
    run = ps.run(partial(train, make=make, sparse=False), "hogwild", workers=1)
    alone = Large(sparse=False)
    descend(alone, given := make(alone.parameters()))
    torch.testing.assert_close(run.state_dict["rows.weight"], alone.rows.weight.detach(), atol=1e-6, rtol=1e-6)
    after, ways = run.returned[0]
    assert ways == {fused}
    assert set(after) == {given.param_groups[0]["fused"]}, "the user's groups say what the user said"


def test_hogwild_steps_large_sparse_gradients_as_torch_steps_them() -> None:
    make = partial(SGD, lr=0.1, momentum=0.9)
    run = ps.run(partial(train, make=make, sparse=True), "hogwild", workers=1)
    alone = Large(sparse=True)
    descend(alone, make(alone.parameters()))
    torch.testing.assert_close(run.state_dict["rows.weight"], alone.rows.weight.detach())
    assert run.returned[0][1] == {False}


class Late(nn.Module):
    """Its second parameter moves from the second step on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = (nn.Parameter(torch.randn(512, 512)) for _ in range(2))


def set_gradients(model: Late, optimizer: Optimizer) -> None:
    """Gradients in another order of memory than their parameter, or of one number in memory, as the user may set them."""
    torch.manual_seed(2)
    for step in range(4):
        optimizer.zero_grad()
        model.first.grad = torch.randn(512, 512) if step % 2 else torch.randn(512, 512).t()
        if step:
            model.second.grad = torch.randn(512, 1).expand(512, 512)
        optimizer.step()


def train_late(worker: ps.Worker, make: Make) -> None:
    model = Late()
    set_gradients(*worker.prepare(model, make(model.parameters())))


@pytest.mark.parametrize("name", ["momentum", "Adam"])
def test_hogwild_steps_as_torch_does_where_gradients_lie_otherwise_or_come_late(name: str) -> None:
    make, _ = MADE[name]
    run = ps.run(partial(train_late, make=make), "hogwild", workers=1)
    alone = Late()
    set_gradients(alone, make(alone.parameters()))
    for key, value in alone.state_dict().items():
        torch.testing.assert_close(run.state_dict[key], value, atol=1e-6, rtol=1e-6)


class OwnZeroGrad(SGD):
    zeroed = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        type(self).zeroed += 1
        super().zero_grad(set_to_none)


def zeroes(worker: ps.Worker) -> tuple[int, bool, float]:
    model = Large(sparse=False)
    model, optimizer = worker.prepare(model, OwnZeroGrad(model.parameters(), lr=0.1))
    model().backward()
    optimizer.zero_grad()
    gone = model.rows.weight.grad is None
    model().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return OwnZeroGrad.zeroed, gone, float(model.rows.weight.grad.abs().sum())


def test_an_optimizers_own_zero_grad_is_called() -> None:
    assert ps.run(zeroes, "sync_sgd", workers=1).returned[0] == (2, True, 0.0)


KEEPS = """
import resource
from plesio.system.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * (64 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
keep_freed_memory()
print(faults(), faults())
"""


def test_memory_that_was_freed_is_taken_again_without_asking_the_system() -> None:
    done = subprocess.run([*PYTHON, "-c", KEEPS], capture_output=True, text=True, check=True, timeout=60)
    first, second = map(int, done.stdout.split())
    assert first > 100 * max(1, second), done.stdout
    assert resource.getpagesize() * first > 1 << 25
