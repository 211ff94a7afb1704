"""A worker's own step of SGD equals torch's, bit for bit, and leaves to torch what it does not do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from plesio.tensors import own_step
from plesio.tensors.own_step import take_step

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}
SHAPES = [(), (7,), (40, 20), (64 * 40 + 37,), (3, 1000)]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(own_step, "LARGE", 1000)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def both(kind: Callable[..., Optimizer] = SGD, **chosen: Any) -> tuple[Optimizer, Optimizer]:
    """Two optimizers over equal parameters."""
    torch.manual_seed(0)
    drawn = [torch.randn(shape) for shape in SHAPES]
    ours, theirs = (kind([torch.nn.Parameter(one.clone()) for one in drawn], lr=0.1, **chosen) for _ in range(2))
    return ours, theirs


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def train(ours: Optimizer, theirs: Optimizer, steps: int = 4) -> None:
    """Equal gradients, of which the first tensor has none at first; afterwards all bits are equal, and those of the state."""
    for number in range(steps):
        for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
            gradient = torch.randn_like(other) if number or other.dim() else None
            mine.grad, other.grad = gradient, None if gradient is None else gradient.clone()
        take_step(ours)
        theirs.step()
        for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
            assert torch.equal(mine, other)
            for key, value in theirs.state[other].items():
                assert torch.equal(ours.state[mine][key], value)


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> list[Optimizer]:
    """The optimizers that took a step of torch's are added here."""
    stepped: list[Optimizer] = []
    torchs = SGD.step

    def step(self: SGD, closure: Any = None) -> Any:
        stepped.append(self)
        return torchs(self, closure)

    monkeypatch.setattr(SGD, "step", step)
    return stepped


@pytest.mark.parametrize("after", [0, 1 << 40], ids=["kernel", "no kernel"])
@pytest.mark.parametrize("chosen", SETTINGS)
def test_the_bits_are_torchs(
    chosen: str, after: int, by_itself: list[Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_step, "PAYS", after)
    ours, theirs = both(**SETTINGS[chosen])
    train(ours, theirs)
    assert ours not in by_itself


def test_a_write_by_a_kernel_is_seen_by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_step, "PAYS", 0)
    weight = torch.nn.Parameter(torch.ones(64 * 32))
    optimizer = SGD([weight], lr=0.1)
    loss = weight.square().sum()
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    take_step(optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_what_is_heard_of_is_left_to_torch(by_itself: list[Optimizer]) -> None:
    ours, theirs = both(momentum=0.9)
    handle = register_optimizer_step_post_hook(lambda *_: None)
    train(ours, theirs, 1)
    handle.remove()
    assert by_itself.count(ours) == 1
    train(ours, theirs, 1)
    assert by_itself.count(ours) == 1
    ours.register_step_pre_hook(lambda *_: None)
    train(ours, theirs, 1)
    assert by_itself.count(ours) == 2


def test_a_schedulers_count_is_no_hook(by_itself: list[Optimizer]) -> None:
    ours, theirs = both(momentum=0.9)
    StepLR(ours, 1)
    train(ours, theirs, 2)
    assert ours not in by_itself
    ours.step = lambda: by_itself.append(ours)  # type: ignore[method-assign,assignment]
    take_step(ours)
    assert by_itself.count(ours) == 1


def test_a_users_step_below_a_schedulers_is_taken() -> None:
    optimizer, _ = both()
    taken: list[Optimizer] = []
    optimizer.step = MethodType(lambda self: taken.append(self), optimizer)  # type: ignore[method-assign]
    StepLR(optimizer, 1)
    take_step(optimizer)
    assert taken == [optimizer]


def test_a_hook_without_a_module_is_heard_of(by_itself: list[Optimizer]) -> None:
    ours, _ = both()
    handle = register_optimizer_step_post_hook({}.setdefault)  # type: ignore[arg-type]  # its __module__ is None
    try:
        with pytest.raises(TypeError, match="setdefault expected at most 2 arguments"):
            take_step(ours)
    finally:
        handle.remove()
    assert ours in by_itself


@pytest.mark.parametrize("halved", ["gradient", "momentum"])
def test_halves_are_not_read_as_floats(halved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_step, "PAYS", 0)
    pair = [torch.nn.Parameter(torch.ones(64 * 32)) for _ in range(2)]
    ours, theirs = (SGD([one], lr=0.1, momentum=0.9) for one in pair)
    for one, optimizer in zip(pair, (ours, theirs), strict=True):
        half = torch.full_like(one, 0.5, dtype=torch.bfloat16)
        if halved == "gradient":
            one.grad_dtype, one.grad = half.dtype, half
        else:
            one.grad, optimizer.state[one]["momentum_buffer"] = torch.ones_like(one), half
    take_step(ours)
    theirs.step()
    assert torch.equal(*pair)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_tensors_in_another_order_or_by_more_threads(threads: int, by_itself: list[Optimizer]) -> None:
    torch.set_num_threads(threads)
    ours, theirs = both(momentum=0.9, nesterov=True)
    train(ours, theirs, 1)
    for one in (ours, theirs):  # as if it was loaded
        last = parameters(one)[-1]
        one.state[last]["momentum_buffer"] = one.state[last]["momentum_buffer"].T.contiguous().T
    train(ours, theirs)
    assert (ours in by_itself) == (threads > 1)
    for one in (ours, theirs):
        parameters(one)[-1].data = parameters(one)[-1].detach().T.contiguous().T
    train(ours, theirs)
    assert ours in by_itself


def test_other_gradients_and_optimizers(by_itself: list[Optimizer]) -> None:
    train(*both(Adam))
    table = torch.nn.Embedding(10, 2, sparse=True)
    sparse = SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1])).sum().backward()
    take_step(sparse)
    double = SGD([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))], lr=0.1)
    parameters(double)[0].grad = torch.ones(2, dtype=torch.float64)
    take_step(double)
    assert by_itself == [sparse, double]
    assert parameters(double)[0].tolist() == [0.9, 0.9]
