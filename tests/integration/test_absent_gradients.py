"""A tensor without a gradient is left alone, as torch leaves it: no momentum, no decay, no step moves it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.strategy import Strategy
from plesio.strategy.recipes import buffered
from support import remote
from support.long_forms import in_turn
from support.runs import by_name

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "dampened": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "adam": partial(torch.optim.Adam, lr=0.05),
    "adamw": partial(torch.optim.AdamW, lr=0.05, amsgrad=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.02, momentum=0.5),
    "adagrad": partial(torch.optim.Adagrad, lr=0.1),
    "adafactor": torch.optim.Adafactor,
}
STRATEGIES = [ps.sync_sgd(), ps.async_sgd(), ps.async_sgd("plain"), ps.async_sgd("delay_compensated"), buffered(1)]
STEPS = 12


class Rivals(nn.Module):
    """Two networks whose losses take turns, and what both use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.other, self.both = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)
        self.idle = nn.Parameter(torch.ones(5))

    def forward(self, inputs: torch.Tensor, turn: int) -> torch.Tensor:
        hidden = self.one(inputs) if turn % 3 == 0 else self.other(inputs) if turn % 3 == 1 else inputs
        return self.both(hidden.tanh()).square().mean()


def taught(model: nn.Module, optimizer: torch.optim.Optimizer, turns: range) -> None:
    for turn in turns:
        inputs = torch.linspace(-1.0, 1.0 + turn, 12).view(4, 3)
        optimizer.zero_grad()
        model(inputs, turn).backward()
        optimizer.step()


def train(worker: Any, make: Make, before: int = 0, end: int = STEPS) -> None:
    """The first steps `before` prepare; a resumed run goes on where it was."""
    model = Rivals()
    optimizer = make(model.parameters())
    taught(model, optimizer, range(before))
    model, optimizer, _ = worker.prepare(model, optimizer, None)
    taught(model, optimizer, range(before + worker.steps_before, end))


def in_torch(make: Make) -> dict[str, torch.Tensor]:
    model = Rivals()
    taught(model, make(model.parameters()), range(STEPS))
    return model.state_dict()


def same(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return state.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in state.items())


@pytest.mark.few(9)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_alternating_losses_give_the_bits_of_torch(name: str, strategy: Strategy) -> None:
    run = ps.run(partial(train, make=OPTIMIZERS[name]), strategy, workers=1, engine=ps.Simulated("uniform"))
    assert same(run.state_dict, in_torch(OPTIMIZERS[name]))


@pytest.mark.parametrize(("name", "before"), in_turn(["sgd", "adam"], [1, 4]))
def test_state_that_differs_from_tensor_to_tensor_is_carried_over(name: str, before: int) -> None:
    run = ps.run(partial(train, make=OPTIMIZERS[name], before=before), ps.sync_sgd(), workers=1)
    assert same(run.state_dict, in_torch(OPTIMIZERS[name]))


@pytest.mark.parametrize("far", [False, True], ids=["a process", "remote"])
def test_real_workers_leave_tensors_alone_and_replay(far: bool, tmp_path: Path) -> None:
    learn = partial(train, make=OPTIMIZERS["adam"])
    run = (remote.run if far else ps.run)(learn, ps.async_sgd(), workers=1, runs=tmp_path)
    assert same(run.state_dict, in_torch(OPTIMIZERS["adam"]))
    assert ps.replay(run.folder, learn).identical
    assert run.missing_gradients == sum(4 if turn % 3 == 2 else 2 for turn in range(STEPS)) + STEPS


def test_checkpoints_keep_the_state_of_single_tensors(tmp_path: Path) -> None:
    learn = partial(train, make=OPTIMIZERS["adam"])
    options: dict[str, Any] = {"workers": 1, "checkpoint": ps.Checkpoint(every_s=60), "runs": tmp_path}
    broken = ps.run(partial(learn, end=5), ps.sync_sgd(), **options)
    assert broken.version == 5
    assert same(ps.run(learn, ps.sync_sgd(), resume=broken.folder, **options).state_dict, in_torch(OPTIMIZERS["adam"]))


def uneven(worker: Any) -> None:
    """Each step, worker 0 uses the first row's module, worker 1 the second's; both use the third's; the fourth's nobody."""
    parts = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(4)])
    with torch.no_grad():
        for part in parts:
            part.weight.fill_(1.0)
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.5, momentum=0.5, weight_decay=0.125)
    parts, optimizer, _ = worker.prepare(parts, optimizer, None)
    for step in range(3):
        optimizer.zero_grad()
        used = [parts[worker.rank], parts[2]] if step < 2 else [parts[2]]
        sum(part(torch.ones(1, 1)) for part in used).backward()
        optimizer.step()


def test_a_gradient_that_only_some_have_counts_as_zero_of_the_others() -> None:
    weights = [torch.nn.Parameter(torch.ones(1, 1)) for _ in range(4)]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.5, weight_decay=0.125)
    for step in range(3):
        for index, share in enumerate((0.5, 0.5, 1.0, 0.0)):
            lacks = share == 0.0 or (step == 2 and index < 2)
            weights[index].grad = None if lacks else torch.full((1, 1), share)
        optimizer.step()
    run = ps.run(uneven, ps.sync_sgd(), workers=2)
    for index, weight in enumerate(weights):
        assert torch.equal(run.state_dict[f"{index}.weight"], weight.detach())


def test_a_buffer_of_contributions_leaves_alone_what_none_of_them_has() -> None:
    run = ps.run(partial(train, make=OPTIMIZERS["adamw"]), buffered(2), workers=2, engine=ps.Simulated("uniform"))
    assert torch.equal(run.state_dict["idle"], torch.ones(5))
    assert not torch.equal(run.state_dict["both.weight"], Rivals().both.weight)


def steady(worker: Any) -> None:
    """Of the same tensors in each step."""
    model = Rivals()
    model, optimizer = worker.prepare(model, OPTIMIZERS["sgd"](model.parameters()))
    for _ in worker.steps(2 * STEPS):
        taught(model, optimizer, range(2, 3))


@pytest.mark.parametrize("now", [ps.sync_sgd(), ps.async_sgd("plain")], ids=by_name)
def test_it_is_left_alone_in_the_next_phase_too(now: Strategy) -> None:
    strategy = ps.phases(ps.sync_sgd(), (5, now))
    run = ps.run(steady, strategy, workers=2, engine=ps.Simulated("uniform"))
    assert run.version > 5
    assert torch.equal(run.state_dict["idle"], torch.ones(5))
