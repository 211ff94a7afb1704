"""Whole numbers of 8 or 4 bits, in blocks that share a scale: the largest magnitude of a block is 127, or 7."""

from __future__ import annotations

import torch

from plesio.tensors.codecs.in_torch import BLOCK, pack_blocks
from plesio.tensors.codecs.packer import Packer, kernels, moved

PIECE = 1 << 24
"""Numbers that a device packs at once, for each of which it needs some 20 bytes."""


class BlockPacker(Packer):
    """First the scales, as float32, then the numbers; of 4 bits, the first of two is the lower half of a byte."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._most = 2 ** (bits - 1) - 1

    def room(self, numel: int) -> int:
        return 4 * _blocks(numel) + (numel * self._bits + 7) // 8

    def pack(self, start: torch.Tensor, now: torch.Tensor | None, into: torch.Tensor, held: torch.Tensor | None) -> int:
        scales, codes, size = self._parts_of(into, start.numel())
        if not (start if now is None else now).is_cpu:
            for at in range(0, start.numel(), PIECE):
                end, per_byte = at + PIECE, 8 // self._bits
                error = held[at:end] if held is not None else None
                delta = moved(start[at:end], now[at:end] if now is not None else None, error)
                into_scales, into_codes = scales[at // BLOCK : end // BLOCK], codes[at // per_byte : end // per_byte]
                pack_blocks(delta, error, into_scales, into_codes, self._most)
            return size
        fast = kernels()
        pack = fast.pack_int8 if self._bits == 8 else fast.pack_int4
        given = (one.numpy() if one is not None else fast.NOTHING for one in (now, held))
        pack(start.numpy(), *given, scales.numpy(), codes.numpy())
        return size

    def add_into(self, packed: torch.Tensor, out: torch.Tensor, share: float) -> None:
        scales, codes, _ = self._parts_of(packed, out.numel())
        add = kernels().add_int8 if self._bits == 8 else kernels().add_int4
        add(scales.numpy(), codes.numpy(), out.numpy(), share)

    def _parts_of(self, packed: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """The scales, the numbers, and the bytes of both."""
        size, head = self.room(numel), 4 * _blocks(numel)
        return packed[:head].view(torch.float32), packed[head:size], size


def _blocks(numel: int) -> int:
    return (numel + BLOCK - 1) // BLOCK
