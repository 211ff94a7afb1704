"""Packing in torch's operations, for tensors on a device: to the bit what the compiled kernels compute on the CPU.

Divisions are by tensors. By a plain number, CUDA would multiply by its reciprocal, which rounds otherwise.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

BLOCK = 256
NIBBLE = 8


def pack_blocks(
    delta: torch.Tensor, held: torch.Tensor | None, scales: torch.Tensor, codes: torch.Tensor, most: int
) -> None:
    """`delta` as whole numbers up to `most`, in blocks that share a scale; `held` becomes what that lacks."""
    numel = delta.numel()
    blocks = pad(delta, (0, -numel % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1)
    top = torch.full_like(largest, most)
    inverse = top / largest
    usable = inverse.isfinite()
    scale = torch.where(usable, largest / top, 0.0)
    scales.copy_(scale)
    whole = (blocks * torch.where(usable, inverse, 0.0)[:, None]).round_()
    if held is not None:
        torch.sub(delta, (whole * scale[:, None]).view(-1)[:numel], out=held)
    flat = whole.view(-1)[:numel]
    if most > NIBBLE:
        codes.copy_(flat.to(torch.int8).view(torch.uint8))
    else:
        pairs = pad(flat, (0, numel % 2)).add_(NIBBLE).to(torch.uint8).view(-1, 2)
        codes.copy_(pairs[:, 0] | pairs[:, 1] << 4)


def pack_largest(delta: torch.Tensor, held: torch.Tensor | None, places: torch.Tensor, values: torch.Tensor) -> None:
    """The largest of `delta`, as many as `values` has room for; of equal ones at the limit, the first."""
    size, count = delta.abs(), values.numel()
    limit = size.topk(count, sorted=False).values.min()
    kept = (size >= limit).nonzero().view(-1)
    if surplus := kept.numel() - count:
        tied = (size[kept] == limit).nonzero().view(-1)
        stays = torch.ones_like(kept, dtype=torch.bool)
        stays[tied[-surplus:]] = False
        kept = kept[stays]
    places.copy_(kept)
    values.copy_(delta[kept])
    if held is not None:
        held.copy_(delta)
        held[kept] = 0.0
