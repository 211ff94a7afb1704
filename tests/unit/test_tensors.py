"""Flat buffers: tensors at their aligned places, and means that do not depend on how they are taken."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from plesio.errors import ConfigurationError
from plesio.memory.folder import state_copies
from plesio.memory.publish import Versions
from plesio.strategy import Strategy
from plesio.strategy.answers import DelayCompensated
from plesio.strategy.recipes.asynchronous import async_sgd, buffered
from plesio.tensors.arena import ALIGNMENT, Arena, Kind, Layout, TensorSpec
from plesio.tensors.finite import PIECE, FiniteCheck, finite_flag, is_finite, zero_unless
from plesio.tensors.mean import Accumulator, blend_buffers, mean_into
from plesio.tensors.model import describe, dump_structure, load_structure
from plesio.tensors.operands import SMALL
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.optimizer_state import StatefulOptimizer
from plesio.tensors.pieces import kept_copies
from plesio.worker.guards.overlap import check_apart
from support.long_forms import examples

specs = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3),
        st.sampled_from(["float32", "bfloat16", "float64", "int64"]),
        st.sampled_from(list(Kind)),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        TensorSpec(f"t{i}", tuple(shape), dtype, kind, group if kind is Kind.TRAINED else -1)
        for i, (shape, dtype, kind, group) in enumerate(rows)
    ]
)


@given(specs)
@settings(max_examples=examples(20), deadline=None)
def test_tensors_are_disjoint_and_aligned(wanted: list[TensorSpec]) -> None:
    layout = Layout(wanted)
    arena = Arena.private(layout)
    for index, view in enumerate(arena.views):
        assert view.shape == wanted[index].shape
        assert view.dtype == wanted[index].torch_dtype
        assert layout.starts[index] % ALIGNMENT == 0
        view.fill_(index + 1)
    assert all(bool((view == index + 1).all()) for index, view in enumerate(arena.views)), "nobody overwrote another"
    for flat, segment in zip(arena.flat, layout.segments, strict=True):
        inside = sum(wanted[index].numel * (index + 1) for index in segment.tensors)
        assert float(flat.double().sum()) == inside, "the padding is zero"
        assert len({(wanted[i].kind, wanted[i].group, wanted[i].dtype) for i in segment.tensors}) == 1


@given(specs, st.data())
@settings(max_examples=examples(17), deadline=None)
def test_the_first_difference_is_named(wanted: list[TensorSpec], data: st.DataObject) -> None:
    assert Layout(wanted).difference(Layout(wanted)) is None
    index = data.draw(st.integers(0, len(wanted) - 1))
    other = list(wanted)
    other[index] = TensorSpec(other[index].name, (*other[index].shape, 7), *_rest(other[index]))
    words = Layout(wanted).difference(Layout(other))
    assert words is not None
    assert f"t{index}: wanted shape {wanted[index].shape}, got {other[index].shape}" in words


def _rest(spec: TensorSpec) -> tuple[str, Kind, int]:
    return spec.dtype, spec.kind, spec.group


def filled(layout: Layout, value: float) -> Arena:
    arena = Arena.private(layout)
    for view in arena.views:
        view.fill_(value)
    return arena


MODEL = [
    TensorSpec("w", (5, 3), "float32", Kind.TRAINED, 0),
    TensorSpec("frozen", (2,), "float32", Kind.FROZEN),
    TensorSpec("mean", (3,), "float32", Kind.BUFFER),
    TensorSpec("count", (), "int64", Kind.BUFFER),
]


def test_a_mean_keeps_frozen_parameters_and_takes_the_largest_count() -> None:
    layout = Layout(MODEL)
    out = filled(layout, 9)
    mean_into(out, [filled(layout, 1), filled(layout, 4)], [0.25, 0.75])
    weight, frozen, mean, count = out.views
    torch.testing.assert_close(weight, torch.full((5, 3), 3.25))
    torch.testing.assert_close(frozen, torch.full((2,), 9.0))
    torch.testing.assert_close(mean, torch.full((3,), 3.25))
    assert int(count) == 4


def test_equal_shares_are_summed_then_divided() -> None:
    """Bit for bit as torch averages over workers."""
    layout = Layout(MODEL)
    generator = torch.Generator().manual_seed(1)
    parts = [Arena.private(layout) for _ in range(3)]
    for part in parts:
        part.views[0].normal_(generator=generator)
    first, second, third = (part.views[0].clone() for part in parts)
    mean_into(parts[0], parts, [1 / 3] * 3)
    assert torch.equal(parts[0].views[0], (first + second + third) * (1 / 3))
    assert not torch.equal(parts[0].views[0], first * (1 / 3) + second * (1 / 3) + third * (1 / 3))


@pytest.mark.parametrize(("dtype", "value", "count"), [("float16", 30_000.0, 4), ("bfloat16", 1.0, 600)])
@pytest.mark.parametrize("even", [True, False])
def test_means_in_half_precision_do_not_overflow(dtype: str, value: float, count: int, even: bool) -> None:
    """In float16 a sum of four would be infinite; in bfloat16 a sum of ones stops at 256."""
    layout = Layout([TensorSpec("w", (5, 3), dtype, Kind.TRAINED, 0)])
    weights = [1.0 if even else 1.0 + place / count for place in range(count)]
    part, out, held = filled(layout, value), Arena.private(layout), Accumulator(Arena.private(layout), 4)
    mean_into(out, [part] * count, [weight / sum(weights) for weight in weights])
    for weight in weights:
        held.add(part, weight)
    assert torch.equal(out.views[0], part.views[0])
    torch.testing.assert_close(held.take_mean(sum(weights)).views[0], part.views[0], rtol=0.01, atol=0)


@pytest.mark.parametrize("weight", [0.5, 1.0, 1.0 + 1e-7, 256.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_mean_of_finite_numbers_is_finite(dtype: str, weight: float) -> None:
    layout = Layout([TensorSpec("w", (5, 3), dtype, Kind.TRAINED, 0)])
    largest = torch.finfo(getattr(torch, dtype)).max
    part, out, held = filled(layout, largest), Arena.private(layout), Accumulator(Arena.private(layout), 4)
    mean_into(out, [part] * 4, [0.25] * 4)
    assert torch.equal(out.views[0], part.views[0])
    for _ in range(4):
        held.add(part, weight)
    torch.testing.assert_close(held.take_mean(4 * weight).views[0], part.views[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sum_counts_what_is_absent_as_zeros(dtype: str) -> None:
    """Whatever lies there, and also at its first contribution; the next sum starts anew."""
    layout = Layout(
        [TensorSpec("w", (3,), dtype, Kind.TRAINED, 0), TensorSpec("v", (3,), dtype, Kind.TRAINED, 0, True)]
    )
    held = Accumulator(Arena.private(layout), 4)
    for _ in range(2):
        for value, absent in ((4.0, 0b10), (2.0, 0), (6.0, 0b11), (2.0, 0b10)):
            held.add(filled(layout, value), 1.0, absent)
        w, v = held.take_mean(4.0).views
        assert (w.tolist(), v.tolist()) == ([2.0] * 3, [0.5] * 3)


def test_a_greater_weight_than_the_first_does_not_overflow() -> None:
    held = Accumulator(Arena.private(Layout(MODEL[:1])), 2)
    part = filled(Layout(MODEL[:1]), 1e37)
    for weight in (1.0, 256.0):
        held.add(part, weight)
    torch.testing.assert_close(held.take_mean(257.0).views[0], part.views[0], rtol=1e-6, atol=0)


def constants(dtype: torch.dtype) -> torch.Tensor:
    """What a mean by arithmetic would change: infinities, a NaN, numbers whose sum is out of range, ordinary fractions."""
    limits = torch.finfo(dtype)
    special = torch.tensor([-torch.inf, torch.inf, torch.nan, limits.min, limits.max, -0.0, limits.tiny], dtype=dtype)
    return torch.cat([special, (torch.arange(1, 200) / 7).to(dtype)])


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], [1.0] * 7, [0.3, 1.1, 0.7]])
def test_equal_buffers_keep_their_bits(dtype: str, weights: list[float]) -> None:
    kind = getattr(torch, dtype)
    value = torch.cat([constants(kind), torch.zeros(1, dtype=kind)])
    layout = Layout([TensorSpec("mask", tuple(value.shape), dtype, Kind.BUFFER)])
    current, held = Arena.private(layout), Accumulator(Arena.private(layout), 4)
    current.views[0].copy_(value)
    parts = [Arena.private(layout) for _ in weights]
    for _ in range(3):
        for place, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            part.copy_from(current)
            part.views[0][-1] = 1.0 + place  # one that is not the same everywhere
            held.add(part, weight)
        mean = held.take_mean(sum(weights))
        mean_into(parts[0], parts, [weight / sum(weights) for weight in weights])
        want = sum(weight * (1.0 + place) for place, weight in enumerate(weights)) / sum(weights)
        for came in (mean, parts[0]):
            assert bits(came.views[0][:-1]) == bits(value[:-1])
            assert float(came.views[0][-1]) == pytest.approx(want, rel=0.01)
        for share in (0.25, 0.75, 1.0):
            blend_buffers(current, current, mean, share)
            assert bits(current.views[0][:-1]) == bits(value[:-1])


@pytest.mark.parametrize(("share", "want"), [(1.0, 2), (0.25, 5)])
def test_a_count_decreases_only_at_full_share(share: float, want: int) -> None:
    layout = Layout([TensorSpec("count", (), "int64", Kind.BUFFER)])
    current, came = Arena.private(layout), Arena.private(layout)
    current.views[0].fill_(5)
    came.views[0].fill_(2)
    blend_buffers(current, current, came, share)
    assert current.views[0].item() == want


def test_buffers_are_interpolated_and_infinities_replaced() -> None:
    layout = Layout([TensorSpec("mask", (5,), "float32", Kind.BUFFER)])
    current, came = Arena.private(layout), Arena.private(layout)
    current.views[0].copy_(torch.tensor([1.0, -torch.inf, 2.0, torch.inf, 0.0]))
    came.views[0].copy_(torch.tensor([3.0, 4.0, -torch.inf, -torch.inf, torch.nan]))
    blend_buffers(current, current, came, 0.25)
    assert current.views[0][:4].tolist() == [1.5, 4.0, -torch.inf, -torch.inf]
    assert bool(current.views[0][4].isnan())


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(0.1, 3)), min_size=1, max_size=6))
@settings(max_examples=examples(17), deadline=None)
def test_an_accumulator_gives_the_weighted_mean(parts: list[tuple[float, float]]) -> None:
    layout = Layout(MODEL[:1])
    held = Accumulator(Arena.private(layout), 4)
    for _ in range(2):  # and it starts anew
        for value, weight in parts:
            held.add(filled(layout, value), weight)
        total = sum(weight for _, weight in parts)
        want = sum(value * weight for value, weight in parts) / total
        got = held.take_mean(total).views[0]
        torch.testing.assert_close(got, torch.full((5, 3), want), rtol=1e-4, atol=1e-5)


def test_a_ring_never_hands_out_a_pinned_buffer() -> None:
    ring: Versions = Versions([Arena.private(Layout(MODEL)) for _ in range(4)])
    for reader in range(2):
        ring.pin(reader, ring.current)
    taken = ring.spare()
    ring.current = taken
    ring.pin(0, taken)
    assert ring.spare() not in (taken, 0), "reader 1 still reads the first buffer"
    ring.release(1)
    assert ring.spare() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [1, 16, PIECE, 2 * PIECE + 5, SMALL, SMALL + 1])
def test_finite_check_finds_a_bad_number_anywhere(dtype: torch.dtype, numel: int) -> None:
    others = torch.ones(7)
    values = torch.randn(numel).to(dtype)
    check = FiniteCheck([others, torch.arange(3), values, torch.full((100,), 3e38)])  # large, and finite
    for place in {0, numel // 2, numel - 1}:
        for bad in (float("nan"), float("inf"), -float("inf")):
            assert check()
            assert is_finite(values)
            good = values[place].clone()
            values[place] = bad
            assert not check()
            assert not is_finite(values)
            values[place] = good
    others[3] = float("nan")
    assert not check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_of_half_numbers_is_taken_in_single_precision(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16 it would be infinite, and each test an exact one."""
    monkeypatch.delattr(torch, "isfinite")
    assert is_finite(torch.full((90_000,), 2.0, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_tensors_are_made_zeros_by_a_flag_where_one_is_not_finite(dtype: torch.dtype, bad: float) -> None:
    """Of two dtypes, one empty, one transposed; large numbers are finite."""
    largest = torch.finfo(dtype).max
    tensors = [torch.full((50, 2), largest, dtype=dtype).t(), torch.ones(3), torch.empty(0, dtype=dtype)]
    before = [one.clone() for one in tensors]
    flag = finite_flag(tensors)
    zero_unless(flag, tensors)
    assert bool(flag)
    assert all(map(torch.equal, tensors, before))
    tensors[0][1, 7] = bad
    flag = finite_flag(tensors)
    zero_unless(flag, tensors)
    assert not flag
    assert not any(one.any() for one in tensors)


def test_a_models_structure_is_pickled_without_its_tensors() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))
    described, tensors = describe(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = dump_structure(model, tensors)
    assert len(data) < 20_000, "10,000 weights are not in it"
    arena = Arena.private(Layout(described.specs))
    copy = load_structure(data, described.specs, arena.views)
    for view, tensor in zip(arena.views, tensors, strict=True):
        view.copy_(tensor.detach())
    inputs = torch.randn(4, 100)
    assert torch.equal(copy.eval()(inputs), model.eval()(inputs))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_a_structure_with_parametrizations_is_pickled(kind: str) -> None:
    """Torch refuses to pickle such a module: its class is made at run time."""
    model = nn.Sequential(getattr(parametrizations, kind)(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 1)).eval()
    described, tensors = describe(model, torch.optim.SGD(model.parameters(), lr=0.1))
    arena = Arena.private(Layout(described.specs))
    copy = load_structure(dump_structure(model, tensors), described.specs, arena.views)
    for view, tensor in zip(arena.views, tensors, strict=True):
        view.copy_(tensor.detach())
    inputs = torch.randn(4, 6)
    assert torch.equal(copy(inputs), model(inputs))
    assert type(model[0]).__name__.startswith("Parametrized"), "the user's own is as it was"


def test_tied_weights_are_one_tensor_with_two_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    described, _ = describe(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [spec.name for spec in described.specs] == ["a.weight"]
    assert described.names == (("a.weight", 0), ("b.weight", 0))


class Holding(nn.Module):
    """A model with these parameters and buffers."""

    def __init__(self, parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in parameters.items():
            self.register_parameter(name, nn.Parameter(tensor))
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


def check(model: nn.Module) -> None:
    """That the tensors lie apart, as prepare does."""
    described, tensors = describe(model, None)
    check_apart([spec.name for spec in described.specs], tensors)


FLAT = torch.arange(24.0)
MATRIX = FLAT.view(4, 6)
ADVICE = "tie them as one parameter (b = a, without .data), register one tensor and take both from it in forward, or"


@pytest.mark.parametrize(
    ("parameters", "buffers"),
    [
        ({"a": FLAT, "b": FLAT}, {}),
        ({"a": FLAT[::2], "b": FLAT[::2]}, {}),
        ({"a": MATRIX, "b": MATRIX.t()}, {}),
        ({"a": MATRIX, "b": MATRIX[1]}, {}),
        ({"a": MATRIX, "b": MATRIX[:, 1]}, {}),
        ({"a": MATRIX, "c": MATRIX.new_zeros(3), "b": FLAT[-1:]}, {}),
        ({"a": FLAT, "c": FLAT.new_zeros(3)}, {"b": FLAT[20:]}),
    ],
)
def test_two_tensors_over_one_memory_are_refused(
    parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(ConfigurationError, match=r"^a and b lie in the same memory and are two tensors") as caught:
        check(Holding(parameters, buffers))
    assert ADVICE in str(caught.value)


@pytest.mark.parametrize(
    "buffers",
    [
        {"a": FLAT[:4], "b": FLAT[2:]},
        {"a": FLAT[:4], "b": FLAT[2:3].expand(5)},
        {"a": FLAT, "b": FLAT.view(torch.int32)},
        {"a": FLAT.view(1, 4, 6), "b": FLAT.view(1, 4, 6)},
    ],
)
def test_untrained_tensors_may_share_memory(buffers: dict[str, torch.Tensor]) -> None:
    """Such as each layer's part of one mask."""
    check(Holding({"c": FLAT.new_zeros(3)}, buffers))
    frozen = Holding({"c": FLAT.new_zeros(3), "a": FLAT, "b": FLAT}, {})
    check(frozen.requires_grad_(False))


def test_adjacent_tensors_in_one_memory_are_accepted() -> None:
    """Flattened parameters, interleaved columns, empty tensors, two names for one tensor."""
    shared = torch.zeros(3)
    model = Holding(
        {"first": FLAT[:9].view(3, 3), "second": FLAT[9:15], "none": FLAT[4:4], "none too": torch.zeros(0, 5)},
        {"even": FLAT[16::2], "odd": FLAT[17::2], "one": shared, "same": shared, "wide": torch.zeros(1).expand(7)},
    )
    described, _ = describe(model, None)
    check(model)
    assert [spec.name for spec in described.specs] == [
        *("first", "second", "none", "none too"), *("even", "odd", "one", "wide"),
    ]  # fmt: skip


@pytest.mark.parametrize("build", [
    lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    lambda: nn.MultiheadAttention(8, 2),
    lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
])  # fmt: skip
def test_torchs_modules_are_accepted(build: Callable[[], nn.Module]) -> None:
    model = build()
    described, _ = describe(model, None)
    assert len(described.specs) == len([*model.parameters(), *model.buffers()])


@pytest.mark.parametrize(
    ("strategy", "momentum", "copies"),
    [
        (async_sgd(DelayCompensated(adaptive=True)), 0.0, 1),  # the mean square
        (async_sgd(DelayCompensated(adaptive=False)), 0.0, 0),
        (async_sgd("gap_aware"), 0.0, 0),
        (async_sgd("plain"), 0.9, 1),
        (buffered(3, correct="plain"), 0.0, 1),  # one buffer, however many go into it
        (async_sgd(), 0.9, 1 + 4),  # a momentum for each worker
        (buffered(3), 0.9, 1 + 4 + 3),  # and what is held
        (buffered(3), 0.0, 1),
    ],
)
def test_the_strategys_state_size_is_predicted(strategy: Strategy, momentum: float, copies: int) -> None:
    spec = OptimizerSpec.of(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=momentum))
    assert state_copies(strategy, [spec] if spec else [], laid_out((2,)), workers=4) == copies


def laid_out(*shapes: tuple[int, ...]) -> Layout:
    return Layout([TensorSpec(f"t{i}", shape, "float32", Kind.TRAINED, 0) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize(
    ("make", "shapes", "copies"),
    [
        (partial(torch.optim.SGD, lr=0.1), [(2,)], 0),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), [(2,)], 1),
        (partial(torch.optim.Adam, lr=0.1), [(2,)], 2),
        (partial(torch.optim.AdamW, lr=0.1, amsgrad=True), [(2,)], 3),
        (partial(torch.optim.Adagrad, lr=0.1), [(2,)], 1),
        (partial(torch.optim.RMSprop, lr=0.1, momentum=0.5, centered=True), [(2,)], 3),
        (torch.optim.Muon, [(5, 3)], 1),
        (torch.optim.Adafactor, [(5, 3)], 0),  # a row and a column for each matrix
        (torch.optim.Adafactor, [(5, 3), (3,)], 1),
    ],
)
def test_the_optimizers_state_size_is_found_on_the_real_shapes(
    make: Callable[[Any], torch.optim.Optimizer], shapes: list[tuple[int, ...]], copies: int
) -> None:
    spec = OptimizerSpec.of(make([nn.Parameter(torch.zeros(shape)) for shape in shapes]))
    assert kept_copies([spec], laid_out(*shapes)) == copies


class Counting(torch.optim.Optimizer):
    """Counts its steps in the group itself, as schedule-free optimizers do, and steps by a part of the rate."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] += 1
            for one in group["params"]:
                one.data.sub_(one.grad, alpha=group["lr"] / group["steps"])


def server_optimizer(optimizer: torch.optim.Optimizer, layout: Layout) -> StatefulOptimizer:
    return StatefulOptimizer([OptimizerSpec.of(optimizer)], filled(layout, 0.0), lambda: Arena.private(layout))


def test_counters_in_param_groups_survive_new_settings_and_a_checkpoint() -> None:
    layout = laid_out((3,))
    weights, gradient = filled(layout, 0.0), filled(layout, 1.0)
    first = server_optimizer(Counting([torch.zeros(3)]), layout)
    for _ in range(2):
        first.step(weights, weights, gradient, [1.0])
    first.set_groups([{**group, "lr": 0.5, "initial_lr": 1.0} for group in first.groups])  # a scheduler came
    first.step(weights, weights, gradient, [1.0])
    second = server_optimizer(Counting([torch.zeros(3)]), layout)
    second.restore(msgspec.json.decode(msgspec.json.encode(first.kept().numbers)))
    second.step(weights, weights, gradient, [1.0])
    torch.testing.assert_close(weights.views[0], torch.full((3,), -(1 + 1 / 2 + 0.5 / 3 + 0.5 / 4)))


@pytest.mark.parametrize(
    "register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook], ids=["before", "after"]
)
def test_global_optimizer_hooks_skip_the_servers_optimizer(register: Any) -> None:
    layout = laid_out((3,))
    weights, seen = filled(layout, 0.0), []
    handle = register(lambda *_: seen.append(1))
    try:
        server_optimizer(torch.optim.Adam([torch.zeros(3)]), layout).step(weights, weights, filled(layout, 1.0), [1.0])
        assert not seen
        own = nn.Parameter(torch.zeros(3))
        own.grad = torch.ones(3)
        torch.optim.Adam([own]).step()
        assert seen == [1]
    finally:
        handle.remove()


def test_optimizers_that_cannot_run_at_a_server_are_refused() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(ConfigurationError, match=r"LBFGS .*local_sgd"):
        OptimizerSpec.of(torch.optim.LBFGS(weights), weights)
    for optimizer, shape, words in (
        (torch.optim.SparseAdam(weights), (2,), r"SparseAdam cannot step at the server: .* dense gradients"),
        (
            torch.optim.Muon([nn.Parameter(torch.zeros(5, 3))]),
            (5, 3, 2),
            r"Muon cannot step at the server: .* ValueError: .*such as local_sgd",
        ),
    ):
        with pytest.raises(ConfigurationError, match=words):
            kept_copies([OptimizerSpec.of(optimizer)], laid_out(shape))


def test_tensors_of_an_arena_are_saved_without_it() -> None:
    """torch.save writes the tensors, not the whole memory."""
    arena = filled(Layout(MODEL), 2)
    file = io.BytesIO()
    torch.save({spec.name: view for spec, view in zip(MODEL, arena.views, strict=True)}, file)
    assert len(file.getvalue()) < 4096, "the arena itself is a page"
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["w"], arena.views[0])
    assert loaded["count"].dtype == torch.int64
