"""The comparison of replicas under all-reduce covers everything but buffers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.worker.guards import divergence
from plesio.worker.guards.divergence import DivergenceCheck

SIZES = [7, 1 << 12, 40_000, 1 << 16, 300]


def check(parts: int, differs: tuple[int, int] | None = None) -> DivergenceCheck:
    """`parts`: how many tensors are parameters, the last of which nobody moves; the others are buffers."""
    kinds = [*[Kind.TRAINED] * (parts - 1), Kind.FROZEN, *[Kind.BUFFER] * (len(SIZES) - parts)]
    layout = Layout(
        [TensorSpec(f"t{i}", (size,), "float32", kind, 0 if kind is Kind.TRAINED else -1)
         for i, (size, kind) in enumerate(zip(SIZES, kinds, strict=True))]
    )  # fmt: skip
    views = Arena.private(layout).views
    if differs is not None:
        tensor, at = differs
        views[tensor][at] = 1e-30
    return DivergenceCheck(layout, views, torch.optim.SGD([torch.zeros(1)], lr=0.1))


@given(parts=st.integers(2, len(SIZES)), tensor=st.integers(0, len(SIZES) - 1), at=st.floats(0, 1, exclude_max=True))
def test_a_difference_anywhere_is_found_within_a_cycle(parts: int, tensor: int, at: float) -> None:
    before, divergence.PART_BYTES = divergence.PART_BYTES, 1 << 16
    try:
        mine, theirs = check(parts), check(parts, (tensor, int(at * SIZES[tensor])))
    finally:
        divergence.PART_BYTES = before
    cycle = range(1000, 1000 + len(mine._parts))
    found = [number for number in cycle if mine.parameters(number) != theirs.parameters(number)]
    assert bool(found) == (tensor < parts)


def test_a_small_model_is_compared_whole_each_time() -> None:
    mine, theirs = check(len(SIZES)), check(len(SIZES), (3, 5))
    assert all(mine.parameters(number) != theirs.parameters(number) for number in range(5))
