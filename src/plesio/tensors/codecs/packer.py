"""What every codec does with a flat float32 tensor."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch


class Packer:
    """One codec. All tensors are flat; packed bytes begin where they are aligned to 64 bytes. It packs on the device of `now`,
    where all but `start` has to be, and unpacks on the CPU. Without a `now`, zeros in its place, it packs on that of `start`."""

    def room(self, numel: int) -> int:
        """How many bytes so many numbers take."""
        raise NotImplementedError

    def pack(self, start: torch.Tensor, now: torch.Tensor | None, into: torch.Tensor, held: torch.Tensor | None) -> int:
        """Pack `start - now` into the bytes of `into`; how many those are.

        With `held`, the error memory, what is packed is `start - now + held`; then `held` is what that lacks.
        """
        raise NotImplementedError

    def add_into(self, packed: torch.Tensor, out: torch.Tensor, share: float) -> None:
        """`out += share * unpacked`; `packed` is as `is_sound` wants it."""
        raise NotImplementedError

    def is_sound(self, packed: torch.Tensor, numel: int) -> bool:
        """Whether these bytes, from somebody else, can be a packing of so many numbers."""
        return packed.numel() == self.room(numel)


@functools.cache
def kernels() -> ModuleType:
    """The compiled kernels, loaded when a codec is used."""
    return importlib.import_module("plesio.kernels.codecs")


def moved(start: torch.Tensor, now: torch.Tensor | None, held: torch.Tensor | None) -> torch.Tensor:
    """What is to be packed."""
    if now is None:
        return start if held is None else start + held
    delta = start.to(now.device, non_blocking=True) - now
    return delta if held is None else delta.add_(held)
