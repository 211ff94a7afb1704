"""Half precision."""

from __future__ import annotations

import torch

from plesio.tensors.codecs.packer import Packer, moved

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class HalfPrecision(Packer):
    """Numbers beyond the largest of fp16 become that."""

    def __init__(self, dtype: str) -> None:
        self._dtype = DTYPES[dtype]
        self._most = torch.finfo(self._dtype).max

    def room(self, numel: int) -> int:
        return 2 * numel

    def pack(self, start: torch.Tensor, now: torch.Tensor | None, into: torch.Tensor, held: torch.Tensor | None) -> int:
        delta, size = moved(start, now, held), self.room(start.numel())
        packed = into[:size].view(self._dtype)
        packed.copy_(delta.clamp(-self._most, self._most))
        if held is not None:
            torch.sub(delta, packed.float(), out=held)
        return size

    def add_into(self, packed: torch.Tensor, out: torch.Tensor, share: float) -> None:
        out.add_(packed.view(self._dtype).float(), alpha=share)
