"""Robust folds, against plain loops over every number, and what must hold of each."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import plesio as ps
from plesio.errors import StrategyError
from plesio.strategy import Strategy, answers
from plesio.strategy.answers import BySamples, Combine, Each, Equal, Krum, Mean, Median, Round, TrimmedMean
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.combining import BLOCK, COMBINED, distances, in_order
from plesio.tensors.mean import mean_into

NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
PLAIN = Layout([TensorSpec("w", (3,), "float32", Kind.TRAINED, 0), TensorSpec("b", (2,), "float32", Kind.TRAINED, 1)])
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def filled(layout: Layout, values: Sequence[Any]) -> Arena:
    """An arena whose tensors, in order, have these values."""
    arena = Arena.private(layout)
    for view, value in zip(arena.views, values, strict=True):
        view.copy_(torch.as_tensor(value, dtype=view.dtype).reshape(view.shape))
    return arena


def of_rows(rows: Sequence[Sequence[float]]) -> list[Arena]:
    """Contributions of five numbers each, in two segments."""
    return [filled(PLAIN, [row[:3], row[3:]]) for row in rows]


def combined(rule: Combine, parts: Sequence[Arena], layout: Layout = PLAIN, absent: int = 0) -> Arena:
    out = Arena.private(layout)
    if (make := COMBINED[type(rule)]) is not None:
        make(rule)(out, parts, absent)
    else:
        mean_into(out, parts, [1 / len(parts)] * len(parts))
    return out


def numbers(arena: Arena) -> list[float]:
    return [value for view in arena.views for value in view.flatten().tolist()]


def by_hand(rule: Combine, rows: Sequence[Sequence[float]]) -> list[float]:
    """As the papers have it, number by number."""
    count = len(rows)
    if isinstance(rule, Krum):
        scores = []
        for one in range(count):
            away = sorted(math.dist(rows[one], rows[other]) ** 2 for other in range(count) if other != one)
            scores.append(sum(away[: count - rule.f - 2]))
        kept = sorted(range(count), key=lambda one: (scores[one], one))[: rule.keep]
        return [statistics.fmean(rows[one][at] for one in kept) for at in range(len(rows[0]))]
    columns = [sorted(column) for column in zip(*rows, strict=True)]
    if isinstance(rule, Median):
        return [statistics.median(column) for column in columns]
    cut = int(rule.part * count) if isinstance(rule, TrimmedMean) else 0
    return [statistics.fmean(column[cut : count - cut]) for column in columns]


def drawn(count: int, seed: int = 0) -> list[list[float]]:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)).tolist()


RULES = [Mean(), Median(), TrimmedMean(0.25), TrimmedMean(0.2), TrimmedMean(0.0), Krum(1), Krum(2), Krum(2, keep=3)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("count", [7, 8, 11])
def test_it_is_what_a_plain_loop_computes(rule: Combine, count: int) -> None:
    for seed in range(5):
        rows = drawn(count, seed)
        rows[seed] = [-1e3 * value for value in rows[seed]]
        torch.testing.assert_close(numbers(combined(rule, of_rows(rows))), by_hand(rule, rows), **CLOSE)


@given(st.lists(st.lists(NUMBERS, min_size=5, max_size=5), min_size=3, max_size=9), st.randoms(use_true_random=False))
def test_coordinates_do_not_depend_on_who_sent_them(rows: list[list[float]], random: Any) -> None:
    mixed = [
        list(row) for row in zip(*(random.sample(column, len(rows)) for column in zip(*rows, strict=True)), strict=True)
    ]
    for rule in (Median(), TrimmedMean(0.34)):
        assert numbers(combined(rule, of_rows(rows))) == numbers(combined(rule, of_rows(mixed)))


@given(st.permutations(range(7)), st.integers(0, 2**31))
def test_krum_does_not_depend_on_the_order(order: list[int], seed: int) -> None:
    rows = drawn(7, seed)
    for rule in (Krum(2), Krum(1, keep=3)):
        mixed = combined(rule, of_rows([rows[one] for one in order]))
        torch.testing.assert_close(numbers(mixed), numbers(combined(rule, of_rows(rows))), **CLOSE)


@given(st.lists(NUMBERS, min_size=5, max_size=5), st.integers(1, 9))
def test_of_equal_contributions_it_is_that_one_to_the_bit(row: list[float], count: int) -> None:
    for rule in (Median(), TrimmedMean(0.3), *([Krum(1)] if count >= 5 else [])):
        assert torch.equal(combined(rule, of_rows([row] * count)).memory, of_rows([row])[0].memory)


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5), min_size=1, max_size=9))
def test_to_cut_nothing_is_the_mean(rows: list[list[float]]) -> None:
    parts = of_rows(rows)
    torch.testing.assert_close(combined(TrimmedMean(0.0), parts).memory.view(torch.float32),
                               combined(Mean(), parts).memory.view(torch.float32), rtol=1e-4, atol=1e-4)  # fmt: skip


@given(
    st.lists(st.lists(st.floats(-10, 10, width=32), min_size=5, max_size=5), min_size=5, max_size=5),
    st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 0.0]), min_size=10, max_size=10),
)
def test_two_of_seven_move_nothing_out_of_what_the_others_sent(honest: list[list[float]], sent: list[float]) -> None:
    """Whatever they send: also a NaN that they call finite."""
    parts = of_rows([sent[:5], *honest, sent[5:]])
    for rule in (Median(), TrimmedMean(0.3), Krum(2), Krum(2, keep=1)):
        found = numbers(combined(rule, parts))
        for value, column in zip(found, zip(*honest, strict=True), strict=True):
            assert min(column) <= value <= max(column)
        assert not isinstance(rule, Krum) or found in honest


@pytest.mark.parametrize("count", range(1, 9))
def test_rows_are_sorted(count: int) -> None:
    """What sorts all zeros and ones sorts all (the 0-1 principle)."""
    columns = torch.tensor([*itertools.product((0.0, 1.0), repeat=count)]).T.contiguous()
    assert torch.equal(torch.stack([*in_order(columns.clone())]), columns.sort(dim=0).values)


# Layouts


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.25), Krum(1), Krum(1, keep=3)], ids=repr)
def test_large_tensors_go_in_blocks_and_into_the_first(rule: Combine) -> None:
    size = 2 * BLOCK + 5
    layout = Layout([TensorSpec("w", (size,), "float32", Kind.TRAINED, 0)])
    rows = torch.randn(6, size, generator=torch.Generator().manual_seed(1))
    rows[0] *= 10  # Krum takes another one, and writes into this
    parts = [filled(layout, [row]) for row in rows]
    expected = combined(rule, parts, layout)
    torch.testing.assert_close(numbers(expected)[:50], by_hand(rule, rows.tolist())[:50], **CLOSE)
    make = COMBINED[type(rule)]
    assert make is not None
    make(rule)(parts[0], parts, 0)
    assert torch.equal(parts[0].memory, expected.memory)
    assert all(torch.equal(part.views[0], row) for part, row in zip(parts[1:], rows[1:], strict=True))


def test_distances_bear_any_scale() -> None:
    """One contribution far off takes no digit of how far the others are apart."""
    rows = [[1.0, 0, 0, 0, 0], [1.001, 0, 0, 0, 0], [3e38, 0, 0, 0, 0]]
    away = distances(of_rows(rows), 0)
    assert away[0, 1].item() == pytest.approx(1e-6, rel=1e-3)
    assert away[0, 2].item() == pytest.approx(9e76, rel=1e-6)
    assert away.diagonal().isinf().all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions(dtype: str) -> None:
    layout = Layout([TensorSpec("w", (5,), dtype, Kind.TRAINED, 0)])
    parts = [filled(layout, [row]) for row in drawn(8)]
    rows = [numbers(part) for part in parts]
    for rule in (Median(), TrimmedMean(0.25), Krum(1, keep=3)):
        wide = combined(rule, parts, layout.wide)  # where the server keeps a master copy
        torch.testing.assert_close(numbers(wide), by_hand(rule, rows), **CLOSE)
        rounded = torch.tensor(numbers(wide), dtype=getattr(torch, dtype)).tolist()
        torch.testing.assert_close(numbers(combined(rule, parts, layout)), rounded, rtol=1e-2, atol=1e-2)


def test_buffers_are_combined_alike_and_counts_have_a_middle_one() -> None:
    specs = [
        TensorSpec("w", (2,), "float32", Kind.TRAINED, 0),
        TensorSpec("mean", (2,), "float32", Kind.BUFFER),
        TensorSpec("mask", (1,), "float32", Kind.BUFFER),
        TensorSpec("batches", (), "int64", Kind.BUFFER),
        TensorSpec("seen", (1,), "bool", Kind.BUFFER),
    ]
    layout = Layout(specs)
    sent = [
        ([1.0, 1.0], [1.0, math.nan], -math.inf, 8, True),
        ([1.2, 1.0], [2.0, math.nan], -math.inf, 9, True),
        ([1.1, 1.1], [3.0, math.nan], -math.inf, 10, True),
        ([1.1, 1.0], [4.0, math.nan], -math.inf, 10, True),
        ([9.0, 9.0], [1e9, math.nan], 7.0, 10**9, False),  # the liar
    ]
    parts = [filled(layout, one) for one in sent]
    for rule, means in ((Median(), 3.0), (TrimmedMean(0.2), 3.0)):
        weights, mean, mask, batches, seen = combined(rule, parts, layout).views
        assert weights.tolist() == pytest.approx(
            [1.1 if rule == Median() else 3.4 / 3, 1.0 if rule == Median() else 3.1 / 3]
        )
        assert mean[0] == means
        assert mean[1].isnan()
        assert mask == -math.inf
        assert batches == 10
        assert seen.item() is True
    weights, mean, mask, batches, _ = combined(Krum(1), parts, layout).views
    assert weights.tolist() == pytest.approx([1.1, 1.0])
    assert (mean[0].item(), mask.item(), batches.item()) == (4.0, -math.inf, 10)


def test_a_segment_that_nobody_sent_is_left_alone_and_not_measured() -> None:
    rows = drawn(5)
    for at, row in enumerate(rows):  # by the second segment the last one would be far off
        row[3:] = [100.0 * at**2] * 2
    parts = of_rows(rows)
    absent = 1 << 1
    for rule in (Median(), TrimmedMean(0.2), Krum(1)):
        out = combined(rule, parts, absent=absent)
        assert out.views[1].tolist() == [0.0, 0.0]
        torch.testing.assert_close(out.views[0].tolist(), by_hand(rule, [row[:3] for row in rows]), **CLOSE)


# Answers


def test_every_answer_has_its_arithmetic() -> None:
    assert set(COMBINED) == set(get_args(Combine))


def test_what_each_needs() -> None:
    assert [Median().needs, TrimmedMean(0.25).needs, TrimmedMean(0.3).needs, TrimmedMean(0.0).needs] == [3, 4, 4, 1]
    assert [Krum(0).needs, Krum(1).needs, Krum(2).needs, Krum(1, keep=6).needs] == [3, 5, 7, 7]
    for part in (0.1, 0.15, 0.2, 0.3, 1 / 3, 0.45, 1 / 161):  # 1 / 161 * 161 is less than 1
        rows = [[0.0] * 5] * (TrimmedMean(part).needs - 1)
        assert numbers(combined(TrimmedMean(part), of_rows([*rows, [1e9] * 5]))) == [0.0] * 5


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: TrimmedMean(0.5), r"TrimmedMean\(part=0.5\): part must be a number of at least 0 and below .5"),
        (lambda: Krum(-1), r"Krum\(f=-1\): f must be a whole number of at least 0"),
        (lambda: Krum(1, keep=0), r"Krum\(keep=0\): keep must be a whole number of at least 1"),
        (
            lambda: ps.fedavg(combine="meridian"),
            "unknown combine 'meridian'; known: krum, low_rank, mean, median, trimmed_mean",
        ),
        (
            lambda: ps.fedavg(combine=3),
            "unknown combine '3'; known: krum, low_rank, mean, median, trimmed_mean",
        ),
        (lambda: ps.fedavg(combine="median", codec="int8"), "combine=median cannot work with send=delta, int8"),
        (
            lambda: ps.fedavg(3, combine="median"),
            "combine=median cannot work with gather=buffer of 3: .* use gather=Round",
        ),
        (
            lambda: ps.fedprox(combine="krum", privacy=ps.Privacy(1.0, 1.0, 1e-5, 10)),
            "leave codec, privacy and secure sums out",
        ),
        (lambda: ps.fedavg(combine="krum", clients_min=2), "needs 5 sites; give clients_min=5 or more"),
        (lambda: replace(ps.async_sgd("plain"), combine=Median()), "combine=median cannot work with gather=each"),
        (lambda: replace(ps.buffered(3, correct="plain"), combine=Median()), "added up as it comes"),
        (lambda: replace(ps.allreduce(), combine=Median()), "use via=Server"),
        (lambda: replace(ps.sync_sgd(), combine=Median()), "members count alike, whatever weight they say"),
    ],
)
def test_what_cannot_be_is_refused(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        build()


def test_a_round_that_is_too_small_is_refused_before_the_run() -> None:
    with pytest.raises(StrategyError, match="a round of 2 contributions, and median needs at least 3;"):
        ps.fedavg(combine="median").check_workers(2)
    with pytest.raises(StrategyError, match=r"a round of 4 contributions, and .* needs at least 5"):
        replace(ps.fedavg(combine="krum"), gather=Round(4)).check_workers(9)
    replace(ps.fedavg(combine="krum"), gather=Round(5)).check_workers(9)
    ps.fedavg(combine="trimmed_mean").check_workers(5)


def test_files_say_it_only_where_it_is_not_the_mean() -> None:
    assert "combine" not in ps.fedavg().as_data()
    for one in (ps.fedavg(combine=ps.Krum(2, keep=3)), ps.fedopt(combine="trimmed_mean"), ps.fedprox(combine="median")):
        assert Strategy.from_data(one.name, one.as_data()) == one
        assert one.weigh == Equal()
    assert ps.fedavg(combine="mean") == ps.fedavg()
    assert ps.fedavg().weigh == BySamples()
    assert ps.fedavg(combine=ps.Krum(2)).name == "fedavg(combine=Krum(f=2))"
    assert Strategy(name="own", gather=Each()).combine == answers.Mean()
