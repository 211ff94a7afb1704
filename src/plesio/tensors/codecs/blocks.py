"""Whole numbers of 8 or 4 bits, in blocks that share a scale: the largest magnitude of a block is 127, or 7."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from plesio.tensors.codecs.packer import Packer, kernels, moved

BLOCK = 256
NIBBLE = 8
"""Added to a number of 4 bits, so that it is not negative."""


class Blocks(Packer):
    """First the scales, as float32, then the numbers; of 4 bits, the first of two is the lower half of a byte."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._most = 2 ** (bits - 1) - 1

    def room(self, numel: int) -> int:
        return 4 * _blocks(numel) + (numel * self._bits + 7) // 8

    def pack(self, start: torch.Tensor, now: torch.Tensor, into: torch.Tensor, held: torch.Tensor | None) -> int:
        numel = start.numel()
        size, head = self.room(numel), 4 * _blocks(numel)
        scales, codes = into[:head].view(torch.float32), into[head:size]
        if (fast := kernels()) is not None:
            pack = fast.pack_int8 if self._bits == 8 else fast.pack_int4
            given = held.numpy() if held is not None else fast.NOTHING
            pack(start.numpy(), now.numpy(), given, scales.numpy(), codes.numpy())
            return size
        delta = moved(start, now, held)
        blocks = pad(delta, (0, -numel % BLOCK)).view(-1, BLOCK)
        largest = blocks.abs().amax(1)
        inverse = self._most / largest
        usable = inverse.isfinite()
        scales.copy_(torch.where(usable, largest / self._most, 0.0))
        whole = (blocks * torch.where(usable, inverse, 0.0)[:, None]).round_()
        if held is not None:
            torch.sub(delta, (whole * scales[:, None]).view(-1)[:numel], out=held)
        flat = whole.view(-1)[:numel]
        if self._bits == 8:
            codes.copy_(flat.to(torch.int8).view(torch.uint8))
        else:
            pairs = pad(flat, (0, numel % 2)).add_(NIBBLE).to(torch.uint8).view(-1, 2)
            codes.copy_(pairs[:, 0] | pairs[:, 1] << 4)
        return size

    def add_into(self, packed: torch.Tensor, out: torch.Tensor, share: float) -> None:
        numel, head = out.numel(), 4 * _blocks(out.numel())
        scales, codes = packed[:head].view(torch.float32), packed[head:]
        if (fast := kernels()) is not None:
            add = fast.add_int8 if self._bits == 8 else fast.add_int4
            add(scales.numpy(), codes.numpy(), out.numpy(), share)
            return
        if self._bits == 8:
            whole = codes.view(torch.int8).float()
        else:
            whole = torch.stack([codes & 15, codes >> 4], 1).view(-1)[:numel].float().sub_(NIBBLE)
        blocks = pad(whole, (0, -numel % BLOCK)).view(-1, BLOCK)
        out.add_((blocks * (scales * share)[:, None]).view(-1)[:numel])


def _blocks(numel: int) -> int:
    return (numel + BLOCK - 1) // BLOCK
