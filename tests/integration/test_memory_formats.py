"""Weights keep their order in memory, such as channels last: convolutions want it. Their values are those of a plain loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from plesio.errors import CheckpointError, ModelMismatchError
from support import loops, remote

LAST, AS_WRITTEN = torch.channels_last, torch.contiguous_format
STEPS = 6
Make = Callable[..., torch.optim.Optimizer]
momentum: Make = partial(torch.optim.SGD, lr=0.05, momentum=0.9)


class Network(nn.Module):
    """With a parameter that has no gradient in some steps, a buffer, and a matrix that lies transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 5, 3, bias=False)
        self.shift = nn.Parameter(torch.zeros(5))
        self.last = nn.Parameter(torch.randn(2, 5).t())
        self.register_buffer("mask", torch.ones(1, 3, 6, 6))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.relu(self.norm(self.first(images * self.mask)))).mean((2, 3))
        return (hidden + self.shift if images[0, 0, 0, 0] > 0 else hidden) @ self.last


def loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, form: torch.memory_format, steps: Iterable[int] = range(STEPS)
) -> None:
    for step in steps:
        source = torch.Generator().manual_seed(step)
        images = torch.randn(4, 3, 6, 6, generator=source).to(memory_format=form)
        loops.descend(optimizer, cross_entropy(model(images), torch.randint(2, (4,), generator=source)))


def training(
    worker: ps.Worker, form: torch.memory_format = LAST, make: Make = momentum, stop_after: int = STEPS
) -> None:
    model: nn.Module = Network().to(memory_format=form)
    before = [one.stride() for one in (*model.parameters(), *model.buffers())]
    model, optimizer = worker.prepare(model, make(model.parameters()))
    loop(model, optimizer, form, range(worker.steps_before, stop_after))
    assert [one.stride() for one in (*model.parameters(), *model.buffers())] == before
    assert all(one.grad is None or one.grad.stride() == one.stride() for one in model.parameters())
    if stop_after < STEPS:
        worker.stop()
        loop(model, optimizer, form, more_and_more_slowly(range(stop_after, STEPS)))


def more_and_more_slowly(steps: Iterable[int]) -> Iterator[int]:
    """The stop comes before the last step, however late."""
    for place, step in enumerate(steps):
        time.sleep(0.01 * 40**place)
        yield step


def plain(form: torch.memory_format = LAST, make: Make = momentum) -> dict[str, torch.Tensor]:
    model = Network().to(memory_format=form)
    loop(model, make(model.parameters()), form)
    return model.state_dict()


def of_one(strategy: Any, **options: Any) -> dict[str, torch.Tensor]:
    return ps.run(partial(training, **options), strategy, workers=1, engine=ps.Simulated("uniform")).state_dict


def same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(one, others[name]) for name, one in some.items())


EVERY_STEP = [ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(every=2), ps.allreduce(), ps.hogwild()]


@pytest.mark.parametrize("strategy", EVERY_STEP, ids=attrgetter("name"))
@pytest.mark.parametrize("form", [LAST, AS_WRITTEN], ids=str)
def test_a_run_is_the_plain_loop_bit_for_bit(strategy: ps.Strategy, form: torch.memory_format) -> None:
    assert same(of_one(strategy, form=form), plain(form))


@pytest.mark.parametrize("make", [torch.optim.Adafactor, partial(torch.optim.Adam, eps=0.0, amsgrad=True)], ids=repr)
@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd", "allreduce"])
def test_an_optimizer_that_steps_tensor_by_tensor_is_the_plain_loop(strategy: str, make: Make) -> None:
    assert same(of_one(strategy, make=make), plain(make=make))


@pytest.mark.parametrize("settings", [{"codec": "int8"}, {"fragments": 2}], ids=str)
def test_packing_and_parts_heed_no_order(settings: dict[str, Any]) -> None:
    """Neither is exact: blocks of numbers have other neighbours."""
    last, written = (of_one(ps.diloco(every=2, **settings), form=form) for form in (LAST, AS_WRITTEN))
    for name, one in written.items():
        assert torch.allclose(last[name], one, atol=2e-2 if "codec" in settings else 1e-5), name


def test_a_worker_on_another_host_has_the_same_weights() -> None:
    assert same(remote.run(training, "sync_sgd").state_dict, plain())


def test_an_evaluation_has_the_same_weights() -> None:
    def total(model: nn.Module) -> dict[str, float]:
        assert model.get_parameter("first.weight").is_contiguous(memory_format=LAST)
        return {name.replace(".", "_"): one[0].double().sum().item() for name, one in model.named_parameters()}

    run = ps.run(training, "sync_sgd", workers=1, evaluate=total)
    weights = {name: one for name, one in plain().items() if name in dict(Network().named_parameters())}
    wanted = {name.replace(".", "_"): one[0].double().sum().item() for name, one in weights.items()}
    assert run.history[-1].metrics == wanted


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.local_sgd(every=1)], ids=attrgetter("name"))
def test_a_resumed_run_goes_on_and_another_order_is_refused(strategy: ps.Strategy, tmp_path: Path) -> None:
    options: dict[str, Any] = {"workers": 1, "runs": tmp_path, "checkpoint": ps.Checkpoint()}
    half = ps.run(partial(training, stop_after=STEPS // 2), strategy, **options)
    assert half.summary.steps < STEPS
    words = (
        r"it has first.weight: .*, by dimensions \(0, 2, 3, 1\), got first.weight: .* in group 0; build the model as"
    )
    with pytest.raises(CheckpointError, match=words):
        ps.run(partial(training, form=AS_WRITTEN), strategy, resume=half.folder, **options)
    whole = ps.run(training, strategy, resume=half.folder, **options)
    assert same(whole.state_dict, plain())
    assert whole.folder is not None
    assert ps.replay(whole.folder, training).identical


def mixed(worker: ps.Worker) -> None:
    training(worker, AS_WRITTEN if worker.rank else LAST)


def test_workers_whose_weights_lie_in_another_order_are_refused() -> None:
    words = r"first.weight: wanted order in memory by dimensions \(0, 2, 3, 1\), got contiguous"
    with pytest.raises(ModelMismatchError, match=words):
        ps.run(mixed, "sync_sgd", workers=2, engine=ps.Simulated("uniform"))
