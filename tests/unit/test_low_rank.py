"""The mean of low-rank products: against a decomposition of the whole matrix, and what must hold of the factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import plesio as ps
from plesio.errors import ConfigurationError, StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import BySamples, Delta, LowRank, Outer, Round
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.low_rank import Pair, ProductMean, check_pairs, pairs_of, product_mean

Factors = list[torch.Tensor]
SHAPES = [(7, 9, 2), (9, 7, 3), (30, 40, 4), (5, 3, 4), (3, 6, 3), (1, 1, 1)]
"""out, in, r; also where the factors of all are wider than the matrix, and where r is more than it can have."""


def drawn(out: int, into: int, rank: int, count: int, seed: int = 0) -> tuple[Factors, Factors, list[float]]:
    random = torch.Generator().manual_seed(seed)
    bs = [torch.randn(out, rank, generator=random, dtype=torch.float64) for _ in range(count)]
    as_ = [torch.randn(rank, into, generator=random, dtype=torch.float64) for _ in range(count)]
    weights = torch.rand(count, generator=random, dtype=torch.float64) + 0.1
    return bs, as_, (weights / weights.sum()).tolist()


def whole(bs: Factors, as_: Factors, shares: Sequence[float]) -> torch.Tensor:
    """The mean of the products, as a whole matrix."""
    return sum((share * b @ a for b, a, share in zip(bs, as_, shares, strict=True)), torch.zeros(()))


def mean(some: Factors, shares: Sequence[float]) -> torch.Tensor:
    return sum((share * one for one, share in zip(some, shares, strict=True)), torch.zeros(()))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_the_closest_one_of_that_rank(shape: tuple[int, int, int], count: int) -> None:
    for seed in range(5):
        bs, as_, shares = drawn(*shape, count, seed)
        b, a = product_mean(bs, as_, shares)
        u, values, vh = torch.linalg.svd(whole(bs, as_, shares))
        rank = min(shape)
        torch.testing.assert_close(b @ a, u[:, :rank] * values[:rank] @ vh[:rank])
        assert (b.shape, a.shape) == (bs[0].shape, as_[0].shape)


@given(st.integers(0, 2**31), st.integers(2, 6), st.floats(0.0, 3.0))
def test_it_is_never_further_from_the_mean_product_than_the_means_apart(seed: int, count: int, apart: float) -> None:
    """The more workers differ, the further are these off."""
    bs, as_, shares = drawn(8, 11, 3, count, seed)
    bs, as_ = ([some[0] + apart * (one - some[0]) for one in some] for some in (bs, as_))
    exact = whole(bs, as_, shares)
    b, a = product_mean(bs, as_, shares)
    means = mean(bs, shares) @ mean(as_, shares)
    assert (b @ a - exact).norm() <= (means - exact).norm() * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[2] <= min(shape)])
def test_workers_that_agree_get_their_factors_back(shape: tuple[int, int, int]) -> None:
    bs, as_, shares = drawn(*shape, 3)
    b, a = product_mean([bs[0]] * 3, [as_[0]] * 3, shares)
    torch.testing.assert_close(b, bs[0])
    torch.testing.assert_close(a, as_[0])


def test_a_little_change_of_what_came_changes_the_factors_a_little() -> None:
    """No sign and no order of singular vectors shows."""
    bs, as_, shares = drawn(12, 10, 3, 4)
    before = product_mean(bs, as_, shares)
    for seed in range(20):
        off = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        after = product_mean([bs[0] + 1e-9 * off, *bs[1:]], as_, shares)
        for one, other in zip(before, after, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@given(st.permutations(range(4)))
def test_it_does_not_depend_on_the_order(order: list[int]) -> None:
    bs, as_, shares = drawn(6, 8, 2, 4)
    mixed = product_mean([bs[one] for one in order], [as_[one] for one in order], [shares[one] for one in order])
    for one, other in zip(product_mean(bs, as_, shares), mixed, strict=True):
        torch.testing.assert_close(one, other)


def test_who_writes_the_same_product_by_other_factors_changes_no_product() -> None:
    bs, as_, shares = drawn(6, 8, 2, 2)
    turn = torch.tensor([[2.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    b, a = product_mean(bs, as_, shares)
    other_b, other_a = product_mean([bs[0] @ turn.inverse(), bs[1]], [turn @ as_[0], as_[1]], shares)
    torch.testing.assert_close(b @ a, other_b @ other_a)


@given(st.integers(0, 2**31), st.sampled_from([shape for shape in SHAPES if shape[2] <= min(shape)]))
def test_no_direction_of_a_is_shorter_than_the_shortest_of_the_workers(seed: int, shape: tuple[int, int, int]) -> None:
    """Or B would be so much longer, and the next steps of A would count too much."""
    bs, as_, shares = drawn(*shape, 4, seed)
    _, a = product_mean(bs, as_, shares)
    shortest = sum(share * torch.linalg.svdvals(one).min() for share, one in zip(shares, as_, strict=True))
    assert torch.linalg.svdvals(a).min() >= shortest * (1 - 1e-9)


# Products that lack a rank


def test_where_b_is_zero_a_is_the_mean_a() -> None:
    """As peft begins: a factorisation of the product alone would make A zero, too, and nothing could be trained again."""
    bs, as_, shares = drawn(6, 8, 3, 2)
    b, a = product_mean([torch.zeros_like(one) for one in bs], as_, shares)
    assert not b.any()
    torch.testing.assert_close(a, mean(as_, shares))


@pytest.mark.parametrize("cancelling", [True, False])
def test_rows_that_the_product_lacks_are_those_of_the_mean_a(cancelling: bool) -> None:
    """Where only the first column of B was trained, and where all of it cancels."""
    bs, as_, shares = drawn(6, 8, 3, 2)
    as_, shares = [as_[0]] * 2, [0.5, 0.5]
    for one in bs:
        one[:, 1:] = 0
    bs = [bs[0], -bs[0]] if cancelling else bs
    b, a = product_mean(bs, as_, shares)
    torch.testing.assert_close(b @ a, whole(bs, as_, shares))
    torch.testing.assert_close(a, as_[0])
    torch.testing.assert_close(b, mean(bs, shares))


def test_where_the_means_of_both_are_zero_and_the_product_is_not() -> None:
    bs, as_, _ = drawn(6, 8, 3, 1)
    b, a = product_mean([bs[0], -bs[0]], [as_[0], -as_[0]], [0.5, 0.5])
    torch.testing.assert_close(b @ a, bs[0] @ as_[0])
    assert torch.linalg.svdvals(a).min() > 1e-4


def test_where_a_is_zero_b_is_the_mean_b() -> None:
    bs, as_, shares = drawn(6, 8, 3, 2)
    b, a = product_mean(bs, [torch.zeros_like(one) for one in as_], shares)
    assert not a.any()
    torch.testing.assert_close(b, mean(bs, shares))


def test_a_nan_stays_one() -> None:
    bs, as_, shares = drawn(6, 8, 3, 2)
    bs[1][0, 0] = math.nan
    b, a = product_mean(bs, as_, shares)
    assert b[0, 0].isnan()
    torch.testing.assert_close(a, mean(as_, shares))


# Contributions

SPECS = [
    TensorSpec("layer.lora_A.default.weight", (2, 5), "float32", Kind.TRAINED, 0),
    TensorSpec("layer.lora_B.default.weight", (4, 2), "float32", Kind.TRAINED, 0),
    TensorSpec("head.weight", (3, 4), "float32", Kind.TRAINED, 0),
    TensorSpec("layer.base.weight", (4, 5), "float32", Kind.FROZEN),
    TensorSpec("mean", (4,), "float32", Kind.BUFFER),
]
LAYOUT = Layout(SPECS)
SHARES = [0.5, 0.3, 0.2]


def contributions(layout: Layout = LAYOUT, count: int = 3) -> list[Arena]:
    arenas = []
    for seed in range(count):
        arenas.append(Arena.private(layout))
        for view in arenas[-1].views:
            view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(seed)))
    return arenas


def factors_of(parts: Sequence[Arena], *, less: Arena | None = None) -> tuple[Factors, Factors]:
    start = less.views if less is not None else [torch.zeros(())] * 2
    sign = 1 if less is None else -1
    return tuple([start[at] + sign * part.views[at].double() for part in parts] for at in (1, 0))  # type: ignore[return-value]


@pytest.mark.parametrize("into_first", [True, False])
def test_pairs_go_by_their_product_and_all_else_by_its_mean(into_first: bool) -> None:
    parts = contributions()
    exact, heads = whole(*factors_of(parts), SHARES), [part.views[2].clone() for part in parts]
    out = parts[0] if into_first else Arena.private(LAYOUT)
    others = [part.memory.clone() for part in parts[1:]]
    ProductMean(LowRank())(out, parts, 0, SHARES, None)
    a, b, head, frozen, _ = out.views
    u, values, vh = torch.linalg.svd(exact)
    torch.testing.assert_close((b @ a).double(), u[:, :2] * values[:2] @ vh[:2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head, mean(heads, SHARES))
    assert frozen.any() == into_first
    assert all(torch.equal(part.memory, before) for part, before in zip(parts[1:], others, strict=True))


def test_of_differences_it_is_that_of_the_parameters_less_where_they_began() -> None:
    start, parts = contributions(count=4)[3], contributions()
    out = Arena.private(LAYOUT)
    ProductMean(LowRank())(out, parts, 0, SHARES, start)
    b, a = product_mean(*factors_of(parts, less=start), SHARES)
    torch.testing.assert_close(start.views[1] - out.views[1], b.float())
    torch.testing.assert_close(start.views[0] - out.views[0], a.float())


def test_a_factor_that_nobody_sent_is_as_it_was() -> None:
    """What lies in the slots there was another fold's; LoRA+ has groups of their own for A and B."""
    layout = Layout([SPECS[0], replace_group(SPECS[1])])
    start, parts = contributions(layout, 4)[3], contributions(layout)
    frozen = Arena.private(layout)
    ProductMean(LowRank())(frozen, parts, 1, SHARES, start)
    expected = mean([start.views[1] - part.views[1] for part in parts], SHARES) @ start.views[0]
    torch.testing.assert_close((start.views[1] - frozen.views[1]) @ start.views[0], expected, rtol=1e-4, atol=1e-4)


def replace_group(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.shape, spec.dtype, spec.kind, 1)


def test_of_equal_contributions_it_is_that_one_to_the_bit() -> None:
    first, out = contributions()[0], Arena.private(LAYOUT)
    ProductMean(LowRank())(out, [first] * 3, 0, SHARES, None)
    assert all(torch.equal(out.views[at], first.views[at]) for at in (0, 1))
    ProductMean(LowRank())(out, [first], 0, [1.0], first)
    assert all(torch.equal(out.views[at], first.views[at]) for at in (0, 1, 2))


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_its_bits_do_not_depend_on_the_number_of_threads() -> None:
    layout = Layout([
        TensorSpec("lora_A", (16, 3000), "float32", Kind.TRAINED, 0),
        TensorSpec("lora_B", (2000, 16), "float32", Kind.TRAINED, 0),
    ])  # fmt: skip
    parts, found = contributions(layout), []
    for count in (1, 2):
        torch.set_num_threads(count)
        out = Arena.private(layout)
        ProductMean(LowRank())(out, parts, 0, SHARES, None)
        found.append(out.memory)
        assert torch.get_num_threads() == count
    assert torch.equal(*found)


def test_half_precision_goes_into_the_master_copy() -> None:
    layout = Layout([TensorSpec(one.name, one.shape, "bfloat16", one.kind, one.group) for one in SPECS])
    parts, out = contributions(layout), Arena.private(layout.wide)
    ProductMean(LowRank())(out, parts, 0, SHARES, None)
    b, a = product_mean(*factors_of(parts), SHARES)
    torch.testing.assert_close(out.views[1], b.float())
    torch.testing.assert_close(out.views[0], a.float())


# Names


def trained(*named: tuple[str, tuple[int, ...]]) -> list[TensorSpec]:
    return [TensorSpec(name, shape, "float32", Kind.TRAINED, 0) for name, shape in named]


def test_pairs_are_found_by_name() -> None:
    specs = trained(
        ("x.lora_B.default.weight", (4, 2)),
        ("x.lora_A.default.weight", (2, 5)),
        ("x.lora_A.other.weight", (2, 5)),
        ("e.lora_embedding_A.default", (2, 9)),
        ("e.lora_embedding_B.default", (4, 2)),
        ("conv.lora_A.weight", (2, 3, 3, 3)),
        ("conv.lora_B.weight", (8, 2, 1, 1)),
        ("head.weight", (2, 2)),
    )
    assert pairs_of(LowRank(), specs) == [Pair(0, 1), Pair(4, 3), Pair(6, 5)]
    assert pairs_of(LowRank("down", "up"), trained(("up.weight", (4, 2)), ("down.weight", (2, 3)))) == [Pair(0, 1)]


FROZEN_A = [TensorSpec("lora_A", (2, 5), "float32", Kind.FROZEN), *trained(("lora_B", (4, 2)))]


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        (trained(("up", (4, 2)), ("down", (2, 5))), r"no two trained .* 'lora_\*A' and 'lora_\*B'; trained are up, down"),
        (FROZEN_A, "take combine='mean', which is exact where one factor of a product is frozen"),
        (trained(("lora_A", (5, 2)), ("lora_B", (4, 2))), r"of shape \(4, 2\) has 2 columns, and lora_A of shape \(5, 2\)"),
    ],
)  # fmt: skip
def test_a_model_without_pairs_is_refused(specs: list[TensorSpec], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_pairs(LowRank(), specs)


# Answers


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LowRank("", "b"), r"LowRank\(a=''\): a must be a name without dots and with one \* at most"),
        (lambda: LowRank("a.x", "b"), "a name without dots"),
        (lambda: LowRank("a", "a"), "must differ"),
        (lambda: LowRank("a*", "b"), r"have a \* both or neither"),
        (lambda: ps.diloco(combine="low_rank"), "momentum, or a rate, would move the factors of a product apart; take"),
        (lambda: ps.diloco(lr=0.7, momentum=0.0, combine="low_rank"), "or an outer SGD of lr=1.0"),
        (lambda: ps.fedopt(combine="low_rank"), "momentum, or a rate"),
        (
            lambda: ps.decoupled(lr=1.0, momentum=0.0, combine="low_rank"),
            "momentum, or a rate",
        ),  # of the work that is there
        (lambda: ps.local_sgd(16, fragments=2, combine="low_rank"), "products are of whole parameters"),
        (lambda: ps.local_sgd(16, codec="int8", combine="low_rank"), "it combines plain numbers"),
        (lambda: ps.fedavg(3, combine="low_rank"), "use gather=Round"),
        (lambda: replace(ps.sync_sgd(), combine=LowRank()), r"use send=Parameters\(\) or Delta"),
    ],
)
def test_what_cannot_be_is_refused(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        build()


def test_who_takes_it_weighs_as_ever_and_says_so_in_files() -> None:
    own = LowRank("down", "up")
    for one in (
        ps.local_sgd(8, combine=own),
        ps.diloco(8, lr=1.0, momentum=0.0, combine=own),
        ps.decoupled(8, outer=Outer("SGD", lr=1.0), combine=own),
        ps.fedavg(combine=own),
    ):
        assert isinstance(one.weigh, BySamples)
        assert Strategy.from_data(one.name, one.as_data()) == one
    assert ps.fedavg(combine="low_rank").name == "fedavg(combine=low_rank)"
    assert ps.local_sgd(combine="low_rank").answers()["combine"] == "mean of lora_*B lora_*A"
    sums = Outer("SGD", "sum", lr=1.0)
    with pytest.raises(StrategyError, match="would move the factors"):
        replace(ps.local_sgd(), send=Delta(), gather=Round(), outer=sums, combine=own)
