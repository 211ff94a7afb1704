"""A device packs the bytes that the CPU would, and keeps there what it left out."""

from __future__ import annotations

import pytest
import torch

from plesio.strategy.answers import Cast, Codec, Int4, Int8, TopK
from plesio.tensors.arena import CPU, Arena, Kind, Layout, TensorSpec
from plesio.tensors.codecs import blocks
from plesio.tensors.packing import Packing
from support.devices import lazy

LAYOUT = Layout(
    [
        TensorSpec("weight", (30, 21), "float32", Kind.TRAINED, 0),
        TensorSpec("precise", (5,), "float64", Kind.TRAINED, 0),
        TensorSpec("mean", (3,), "float32", Kind.BUFFER),
    ]
)


def drawn(seed: int) -> Arena:
    arena, source = Arena.private(LAYOUT), torch.Generator().manual_seed(seed)
    for view in arena.views:
        view.copy_(torch.randn(view.shape, generator=source))
    return arena


@pytest.mark.parametrize("start_there", [False, True])
@pytest.mark.parametrize("codec", [Cast(), Int8(), Int4(), TopK(0.1)], ids=str)
def test_a_device_packs_to_the_bit_what_the_cpu_packs(
    codec: Codec, start_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "PIECE", 2 * blocks.BLOCK)  # so that there are two pieces
    packing, packed, left_out = Packing(LAYOUT, codec), [], []
    for device in (CPU, lazy()):
        slot, held = Arena.private(LAYOUT), packing.memory(device)
        for seed in (0, 2):  # the second time on top of what the first left out
            start, now = (Arena.private(LAYOUT, on) for on in (device if start_there else CPU, device))
            start.memory.copy_(drawn(seed).memory)
            now.memory.copy_(drawn(seed + 1).memory)
            packing.pack(start, now, slot, held)
        packed.append(slot.memory)
        left_out.append(held.memory.cpu())
    assert held.memory.device.type == "lazy"
    assert torch.equal(*packed)
    assert torch.equal(*left_out)
    assert bool(left_out[0].any())


def test_of_equal_numbers_at_the_limit_a_device_sends_the_first() -> None:
    packing, slot = Packing(LAYOUT, TopK(0.1)), Arena.private(LAYOUT)
    now = Arena.private(LAYOUT, lazy())
    now.flat[0].fill_(-1.0)
    packing.pack(Arena.private(LAYOUT), now, slot, None)
    count = round(0.1 * slot.flat[0].numel())
    assert slot.memory[: 4 * count].view(torch.int32).tolist() == list(range(count))
