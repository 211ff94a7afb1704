"""SGD at the server equals torch's, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD

from plesio.tensors import operands
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.optimizer_state import StatefulOptimizer
from plesio.tensors.sgd import steps_directly

SETTINGS = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-4, 1.0),
        "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        "weight_decay": st.sampled_from([0.0, 1e-2]),
        "dampening": st.sampled_from([0.0, 0.3]),
        "nesterov": st.booleans(),
    }
).filter(lambda one: not one["nesterov"] or (one["momentum"] and not one["dampening"]))


@settings(deadline=None)
@given(
    chosen=SETTINGS,
    in_place=st.booleans(),
    seed=st.integers(0, 9),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    foreach=st.sampled_from([None, True]),
)
def test_sgd_equals_torch_bit_for_bit(
    chosen: dict[str, Any], in_place: bool, seed: int, dtype: str, foreach: bool | None
) -> None:
    """With every setting, in place and into another buffer."""
    torch.manual_seed(seed)
    layout = Layout([TensorSpec("w", (40, 20), dtype, Kind.TRAINED, 0), TensorSpec("b", (), dtype, Kind.TRAINED, 0)])
    plain = [torch.nn.Parameter(torch.randn(spec.shape).to(spec.torch_dtype)) for spec in layout.specs]
    torchs = SGD(plain, **chosen, foreach=foreach)
    current, target, gradient = (Arena.private(layout) for _ in range(3))
    for view, parameter in zip(current.views, plain, strict=True):
        view.copy_(parameter.detach())
    ours = StatefulOptimizer([OptimizerSpec.of(torchs)], current, lambda: Arena.private(layout))
    for _ in range(3):
        for view, parameter in zip(gradient.views, plain, strict=True):
            parameter.grad = torch.randn_like(parameter)
            view.copy_(parameter.grad)
        torchs.step()
        out = current if in_place else target
        ours.step(out, current, gradient, [1.0])
        current, target = out, current
        for view, parameter in zip(current.views, plain, strict=True):
            assert torch.equal(view, parameter)
    names = [name for name in ours.kept().tensors if name.endswith("momentum_buffer")]
    assert bool(names) == bool(chosen["momentum"]), "a checkpoint keeps the momentum"


@pytest.mark.parametrize("size", [5, 16, 1 << 18])
def test_chunked_sgd_equals_torch(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large models are stepped in chunks that fit the caches."""
    monkeypatch.setattr(operands, "CHUNK", size)
    layout = Layout([TensorSpec("w", (64,), "float64", Kind.TRAINED, 0)])
    parameter = torch.nn.Parameter(torch.randn(64, dtype=torch.float64))
    torchs = SGD([parameter], lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    weights, gradient = Arena.private(layout), Arena.private(layout)
    weights.views[0].copy_(parameter.detach())
    ours = StatefulOptimizer([OptimizerSpec.of(torchs)], weights, lambda: Arena.private(layout))
    for _ in range(3):
        parameter.grad = gradient.views[0].copy_(torch.randn(64, dtype=torch.float64)).clone()
        torchs.step()
        ours.step(weights, weights, gradient, [1.0])
    torch.testing.assert_close(weights.views[0], parameter.detach(), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("other", ["maximize", "fused", "foreach", "differentiable"])
def test_other_settings_and_classes_are_left_to_torch(other: str) -> None:
    """Another kernel, `maximize`, a differentiable step, and classes of the user's own."""
    groups = SGD([torch.ones(1)], lr=0.1).param_groups
    assert steps_directly(SGD, groups[0])
    assert not steps_directly(SGD, {**groups[0], other: True})
    assert not steps_directly(type("Mine", (SGD,), {}), groups[0])
