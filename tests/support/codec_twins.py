"""The codecs in torch's operations, with which compiled kernels are compared; and what is close where weights travel packed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import pad

from plesio.tensors.codecs.blocks import BLOCK, BlockPacker
from plesio.tensors.codecs.in_torch import NIBBLE, pack_blocks, pack_largest
from plesio.tensors.codecs.packer import Packer, moved
from plesio.tensors.codecs.top_k import Largest

STEP = 1e-3
"""More than one of int8, in the trainings of tests."""


class TorchBlocks(BlockPacker):
    def pack(self, start: torch.Tensor, now: torch.Tensor, into: torch.Tensor, held: torch.Tensor | None) -> int:
        scales, codes, size = self._parts_of(into, start.numel())
        pack_blocks(moved(start, now, held), held, scales, codes, self._most)
        return size

    def add_into(self, packed: torch.Tensor, out: torch.Tensor, share: float) -> None:
        numel = out.numel()
        scales, codes, _ = self._parts_of(packed, numel)
        if self._bits == 8:
            whole = codes.view(torch.int8).float()
        else:
            whole = torch.stack([codes & 15, codes >> 4], 1).view(-1)[:numel].float().sub_(NIBBLE)
        blocks = pad(whole, (0, -numel % BLOCK)).view(-1, BLOCK)
        out.add_((blocks * (scales * share)[:, None]).view(-1)[:numel])


class TorchLargest(Largest):
    def pack(self, start: torch.Tensor, now: torch.Tensor, into: torch.Tensor, held: torch.Tensor | None) -> int:
        size = self.room(start.numel())
        pack_largest(moved(start, now, held), held, *self._parts(into[:size]))
        return size


def twin_of(packer: Packer) -> Packer:
    """The same codec in torch's operations."""
    if isinstance(packer, BlockPacker):
        return TorchBlocks(packer._bits)
    return TorchLargest(packer._part) if isinstance(packer, Largest) else packer


def assert_close_by_steps(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Nine in ten are the same to rounding, none is further than a step. A number in the middle between two steps of the packing
    goes to either, by its last bit, which processors round differently; what that leaves out is in the next contribution."""
    away = torch.cat([((got[name] - value).abs() / (1 + value.abs())).flatten() for name, value in wanted.items()])
    assert float((away <= 1e-6).double().mean()) > 0.9, away.sort(descending=True).values[:20]
    assert float(away.max()) < STEP
