"""Weighted means over arenas, segment by segment; frozen parameters are left as they are.

Numbers that are not floating point (a batch-norm layer's count of batches) have no mean: the largest is taken. Those of
half precision are added up in float32: their sum may be out of their range where their mean is not, and many of them stop
growing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from plesio.tensors.arena import Arena
from plesio.tensors.operands import pieces

HALF = (torch.float16, torch.bfloat16)


def mean_into(out: Arena, parts: Sequence[Arena], shares: Sequence[float]) -> None:
    """`out` = sum of shares[i] * parts[i]; the shares add up to 1, and `out` may be parts[0].

    Equal shares are summed first and divided once, and a single part is copied as it is, bit for bit.
    """
    equal = all(share == shares[0] for share in shares)
    for segment in out.layout.moving_segments:
        target, first = out.flat[segment], parts[0].flat[segment]
        if not target.is_floating_point():
            _largest_into(target, [part.flat[segment] for part in parts])
            continue
        if target.dtype in HALF and len(parts) > 1:
            _half_into(target, [part.flat[segment] for part in parts], shares)
            continue
        if target is not first and target.data_ptr() != first.data_ptr():
            target.copy_(first)
        if len(parts) == 1:
            continue
        if not equal:
            target.mul_(shares[0])
        for part, share in zip(parts[1:], shares[1:], strict=True):
            target.add_(part.flat[segment], alpha=1.0 if equal else share)
        if equal:
            target.mul_(shares[0])


def _half_into(target: torch.Tensor, parts: Sequence[torch.Tensor], shares: Sequence[float]) -> None:
    for out, first, *others in pieces(target, *parts):
        total = first.float().mul_(shares[0])
        for piece, share in zip(others, shares[1:], strict=True):
            total.add_(piece, alpha=share)
        out.copy_(total)


def _largest_into(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    target.copy_(parts[0])
    for part in parts[1:]:
        torch.maximum(target, part, out=target)


def blend_buffers(target: Arena, current: Arena, mean: Arena, share: float) -> None:
    """Move the model's buffers towards those that came: all the way for a whole round, a share for fewer workers."""
    for segment in target.layout.buffer_segments:
        new, old, came = target.flat[segment], current.flat[segment], mean.flat[segment]
        if new.is_floating_point():
            torch.lerp(old, came, share, out=new)
        else:
            torch.maximum(old, came, out=new)


class Accumulator:
    """A running weighted sum of contributions whose workers go on before the fold; in half precision their running mean."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._empty = True
        self._weight = 0.0

    def add(self, part: Arena, weight: float) -> None:
        """Add `weight` times `part`."""
        self._weight = weight if self._empty else self._weight + weight
        for segment in part.layout.moving_segments:
            total, one = self.arena.flat[segment], part.flat[segment]
            if not total.is_floating_point():
                total.copy_(one) if self._empty else torch.maximum(total, one, out=total)
            elif total.dtype in HALF:
                share = weight / self._weight
                _half_into(
                    total, [one] if self._empty else [total, one], [share] if self._empty else [1 - share, share]
                )
            elif self._empty:
                torch.mul(one, weight, out=total)
            else:
                total.add_(one, alpha=weight)
        self._empty = False

    def empty(self) -> None:
        """Forget what was added."""
        self._empty = True

    def take_mean(self, total_weight: float) -> Arena:
        """The weighted mean of what was added; the next `add` starts anew."""
        for total in self.arena.flat:
            if total.is_floating_point():
                total.mul_((self._weight if total.dtype in HALF else 1.0) / total_weight)
        self._empty = True
        return self.arena
