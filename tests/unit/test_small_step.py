"""A worker's own step of SGD over small tensors equals torch's, bit for bit, and leaves to torch what is more than that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from plesio.tensors.operands import CHUNK
from plesio.tensors.small_step import takes_small_step

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"momentum": 0.9, "weight_decay": 0.01, "dampening": 0.3},
    "nesterov": {"momentum": 0.9, "nesterov": True},
}
SHAPES = [(), (7,), (40, 20), (64 * 40 + 37,), (3, 1000)]


def both(kind: Callable[..., Optimizer] = SGD, **chosen: Any) -> tuple[Optimizer, Optimizer]:
    """Two optimizers over equal parameters, of which the last lies transposed."""
    torch.manual_seed(0)
    drawn = [torch.randn(shape) for shape in SHAPES]
    ours, theirs = (
        kind([torch.nn.Parameter(one.clone()) for one in [*drawn, drawn[-1].t()]], lr=0.1, **chosen) for _ in range(2)
    )
    return ours, theirs


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def give_gradients(ours: Optimizer, theirs: Optimizer) -> None:
    for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
        mine.grad = torch.randn_like(other)
        other.grad = mine.grad.clone()


@pytest.mark.parametrize("chosen", SETTINGS)
def test_the_bits_and_the_state_are_torchs(chosen: str) -> None:
    ours, theirs = both(**SETTINGS[chosen])
    StepLR(ours, 1)  # which counts its steps
    for number in range(4):
        give_gradients(ours, theirs)
        if not number:
            parameters(ours)[0].grad = parameters(theirs)[0].grad = None
        assert takes_small_step(ours)
        theirs.step()
        for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
            assert torch.equal(mine, other)
            kept = theirs.state[other].items() if other in theirs.state else ()
            assert all(torch.equal(ours.state[mine][key], value) for key, value in kept if value is not None)


def test_what_is_more_than_the_rule_is_left_to_torch() -> None:
    def heard_by_all() -> Any:
        return register_optimizer_step_post_hook(lambda *_: None)

    for kind, chosen in ((Adam, {}), (SGD, {"maximize": True}), (SGD, {"foreach": True}), (SGD, {"fused": True})):
        ours, theirs = both(kind, **chosen)
        give_gradients(ours, theirs)
        assert not takes_small_step(ours)
    ours, theirs = both()
    give_gradients(ours, theirs)
    handle = heard_by_all()
    assert not takes_small_step(ours)
    handle.remove()
    handle = ours.register_step_pre_hook(lambda *_: None)
    assert not takes_small_step(ours)
    handle.remove()
    parameters(ours)[0].grad = torch.ones(()).to_sparse()
    assert not takes_small_step(ours)
    ours.step = lambda: None  # type: ignore[method-assign,assignment]
    assert not takes_small_step(ours)
    large = torch.nn.Parameter(torch.ones(CHUNK + 1))
    large.grad = torch.ones_like(large)
    assert not takes_small_step(SGD([large], lr=0.1))


def test_a_write_is_seen_by_autograd() -> None:
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = SGD([weight], lr=0.1)
    loss = weight.square().sum()
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert takes_small_step(optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
