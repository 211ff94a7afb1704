"""The divergence check of replicas under all-reduce covers everything but buffers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.worker.guards.divergence import PART_BYTES, PARTS, DivergenceCheck

SIZES = [7, PART_BYTES // 4, 40_000, 4 * PART_BYTES, 300]


def arena(parts: int) -> Arena:
    """`parts`: how many tensors are parameters, the last of which nobody moves; the others are buffers."""
    kinds = [*[Kind.TRAINED] * (parts - 1), Kind.FROZEN, *[Kind.BUFFER] * (len(SIZES) - parts)]
    layout = Layout(
        [TensorSpec(f"t{i}", (size,), "float32", kind, 0 if kind is Kind.TRAINED else -1)
         for i, (size, kind) in enumerate(zip(SIZES, kinds, strict=True))]
    )  # fmt: skip
    return Arena.private(layout)


@given(parts=st.integers(2, len(SIZES)), tensor=st.integers(0, len(SIZES) - 1), at=st.floats(0, 1, exclude_max=True))
def test_a_difference_anywhere_is_found_within_a_cycle(parts: int, tensor: int, at: float) -> None:
    mine, theirs = arena(parts), arena(parts)
    theirs.views[tensor][int(at * SIZES[tensor])] = 1e-30
    ours, other = DivergenceCheck(mine), DivergenceCheck(theirs)
    found = [round for round in range(1000, 1000 + PARTS) if ours.checksum(round) != other.checksum(round)]
    assert bool(found) == (tensor < parts)
    assert all(f"t{tensor}" in ours.names(round).split(", ") for round in found)


def test_a_small_model_is_compared_whole_at_each_step() -> None:
    layout = Layout([TensorSpec("w", (PART_BYTES // 8,), "float32", Kind.TRAINED, 0)])
    mine, theirs = Arena.private(layout), Arena.private(layout)
    theirs.views[0][-1] = 1.0
    assert all(DivergenceCheck(mine).checksum(round) != DivergenceCheck(theirs).checksum(round) for round in range(40))
