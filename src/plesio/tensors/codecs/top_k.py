"""The numbers of largest magnitude, with their places."""

from __future__ import annotations

import torch

from plesio.tensors.codecs.in_torch import pack_largest
from plesio.tensors.codecs.packer import Packer, kernels, moved


class Largest(Packer):
    """Exactly k of n: of equal ones at the limit, the first. First the places in order, as int32, then the numbers."""

    def __init__(self, part: float) -> None:
        self._part = part

    def room(self, numel: int) -> int:
        return 8 * self._count(numel)

    def _count(self, numel: int) -> int:
        return min(numel, max(1, round(self._part * numel)))

    def pack(self, start: torch.Tensor, now: torch.Tensor | None, into: torch.Tensor, held: torch.Tensor | None) -> int:
        count = self._count(start.numel())
        places, values = self._parts(into[: 8 * count])
        if not (start if now is None else now).is_cpu:
            pack_largest(moved(start, now, held), held, places, values)
            return 8 * count
        left = held if held is not None else torch.empty_like(start)
        fast = kernels()
        before = now.numpy() if now is not None else fast.NOTHING
        fast.pack_largest(start.numpy(), before, left.numpy(), held is not None, places.numpy(), values.numpy())
        return 8 * count

    def add_into(self, packed: torch.Tensor, out: torch.Tensor, share: float) -> None:
        places, values = self._parts(packed)
        out.index_add_(0, places, values, alpha=share)

    def is_sound(self, packed: torch.Tensor, numel: int) -> bool:
        if packed.numel() != self.room(numel):
            return False
        places, _ = self._parts(packed)
        return bool((places >= 0).all() and (places < numel).all() and (places.diff() > 0).all())

    def _parts(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = packed.numel() // 2
        return packed[:half].view(torch.int32), packed[half:].view(torch.float32)
