"""The codecs in torch's operations, which the compiled kernels are compared with."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from plesio.tensors.codecs.blocks import BLOCK, Blocks
from plesio.tensors.codecs.packer import Packer, moved
from plesio.tensors.codecs.top_k import Largest

NIBBLE = 8


class TorchBlocks(Blocks):
    def pack(self, start: torch.Tensor, now: torch.Tensor, into: torch.Tensor, held: torch.Tensor | None) -> int:
        numel = start.numel()
        scales, codes, size = self._parts_of(into, numel)
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
        numel, count = start.numel(), self._count(start.numel())
        places, values = self._parts(into[: 8 * count])
        delta = moved(start, now, held)
        size = delta.abs()
        limit = size.kthvalue(numel - count + 1).values
        kept = size > limit
        ties = (size == limit).nonzero().view(-1)[: count - int(kept.sum())]
        kept[ties] = True
        places.copy_(kept.nonzero().view(-1))
        values.copy_(delta[kept])
        if held is not None:
            held.copy_(delta.masked_fill_(kept, 0.0))
        return 8 * count


def twin_of(packer: Packer) -> Packer:
    """The same codec in torch's operations."""
    if isinstance(packer, Blocks):
        return TorchBlocks(packer._bits)
    return TorchLargest(packer._part) if isinstance(packer, Largest) else packer
