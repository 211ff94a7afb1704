"""Which part of a tensor each rank of an island sends: together all of it, each element once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plesio.errors import ConfigurationError
from plesio.worker.replicas.regions import Region, shared_out

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


def whole_of(shape: tuple[int, ...]) -> Region:
    return Region((0,) * len(shape), shape)


def shard(shape: tuple[int, ...], along: int, part: int, parts: int) -> Region:
    """As torch cuts: pieces of ceil(size / parts), the last ones shorter or empty."""
    size = -(-shape[along] // parts)
    begin, end = (min(one * size, shape[along]) for one in (part, part + 1))
    start, length = [0] * len(shape), list(shape)
    start[along], length[along] = begin, end - begin
    return Region(tuple(start), tuple(length))


@st.composite
def placements(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Region]]:
    """A tensor's shape, and what each rank of a mesh holds: of shards over one dimension, each held by several, or all of it."""
    shape, copies, shards = draw(SHAPES), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    if not shape or shards == 1:
        return shape, [whole_of(shape)] * (copies * shards)
    along = draw(st.integers(0, len(shape) - 1))
    return shape, [shard(shape, along, part, shards) for _ in range(copies) for part in range(shards)]


@given(placements())
def test_what_ranks_send_tiles_a_tensor(case: tuple[tuple[int, ...], list[Region]]) -> None:
    shape, regions = case
    sent = torch.zeros(shape)
    for rank in range(len(regions)):
        (held,) = shared_out(["w"], [whole_of(shape)], [[one] for one in regions], rank)
        assert held.holds == regions[rank]
        if held.sends.numel:
            held.sends.of(sent).add_(1)
            local = held.holds.of(torch.arange(sent.numel()).view(shape))
            there = held.sends.of(torch.arange(sent.numel()).view(shape))
            assert torch.equal(held.sends.within(held.holds).of(local), there)
    assert torch.equal(sent, torch.ones(shape))


@given(st.integers(1, 8), st.integers(8, 64), st.integers(1, 9))
def test_what_all_hold_is_sent_in_even_parts(ranks: int, rows: int, columns: int) -> None:
    shape = (rows, columns)
    held = [shared_out(["w"], [whole_of(shape)], [[whole_of(shape)]] * ranks, rank)[0] for rank in range(ranks)]
    assert max(one.sends.numel for one in held) <= -(-rows // ranks) * columns
    assert all(one.all for one in held)


@pytest.mark.parametrize(
    "regions",
    [
        [Region((0, 0), (2, 3)), Region((0, 0), (2, 3))],  # half of it is nobody's
        [Region((0, 0), (3, 3)), Region((2, 0), (2, 3))],  # a row is held twice, by shards of other sizes
    ],
)
def test_ranks_that_do_not_hold_all_of_a_tensor_are_refused(regions: list[Region]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"what the 2 ranks of a worker hold of w, \[4, 3\], does not make it up"
    ):
        shared_out(["w"], [whole_of((4, 3))], [[one] for one in regions], 0)
