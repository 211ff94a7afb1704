"""Tensors keep their order in memory in an arena."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec, apart, flattened, order_in_memory

SIZES = st.lists(st.integers(1, 3), max_size=5)


@given(SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), st.permutations(range(len(sizes))))))
def test_a_tensor_without_gaps_keeps_its_strides_in_an_arena(drawn: tuple[list[int], list[int]]) -> None:
    sizes, order = drawn
    tensor = torch.randn(sizes).permute(order)
    spec = TensorSpec("w", tuple(tensor.shape), "float32", Kind.TRAINED, 0, order=order_in_memory(tensor))
    view = Arena.private(Layout([spec])).views[0]
    assert [one for one, size in zip(view.stride(), tensor.shape, strict=True) if size > 1] == [
        one for one, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ]
    view.copy_(tensor)
    assert torch.equal(view, tensor)
    assert torch.equal(flattened(view), tensor.permute(sorted(range(len(order)), key=order.__getitem__)).reshape(-1))


@pytest.mark.parametrize("shape", [(8, 1, 3, 3), (8, 4, 1, 1), (1, 4, 2, 2), (8, 3, 5, 5)])
@pytest.mark.parametrize("form", [torch.channels_last, torch.contiguous_format])
def test_torch_sees_the_memory_format_of_a_weight_in_an_arena(
    shape: tuple[int, ...], form: torch.memory_format
) -> None:
    tensor = torch.empty(shape).to(memory_format=form)
    spec = TensorSpec("w", shape, "float32", Kind.TRAINED, 0, order=order_in_memory(tensor))
    assert Arena.private(Layout([spec])).views[0].stride() == tensor.stride()


@pytest.mark.parametrize("tensor", [torch.ones(4, 6)[:, ::2], torch.ones(1, 3).expand(4, 3), torch.ones(0, 3)])
def test_a_tensor_with_gaps_or_overlaps_becomes_contiguous(tensor: torch.Tensor) -> None:
    assert order_in_memory(tensor) == ()


def test_a_view_of_an_arena_on_a_device_has_a_storage_of_its_own() -> None:
    """So that torch.save of one weight saves no more. (Here of the CPU's memory, as of any that exports tensors.)"""
    memory = torch.zeros(64)
    view = apart(memory[16:24])
    view.fill_(1)
    assert view.untyped_storage().nbytes() == 32
    assert memory.sum() == 8
