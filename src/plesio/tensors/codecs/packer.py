"""What every codec does with a flat float32 tensor."""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch


class Packer:
    """One codec. All tensors are flat and on the CPU; packed bytes begin where they are aligned to 64 bytes."""

    def room(self, numel: int) -> int:
        """How many bytes so many numbers take."""
        raise NotImplementedError

    def pack(self, start: torch.Tensor, now: torch.Tensor, into: torch.Tensor, held: torch.Tensor | None) -> int:
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


compiled = True
"""Whether to use compiled kernels; tests compare both."""


def kernels() -> ModuleType | None:
    """The compiled kernels; None where Numba is not installed."""
    return _loaded() if compiled else None


@functools.cache
def _loaded() -> ModuleType | None:
    try:
        return importlib.import_module("plesio.tensors.codecs.kernels")
    except ImportError:
        warnings.warn(
            "codecs without Numba take up to 28 times as long; pip install numba",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def moved(start: torch.Tensor, now: torch.Tensor, held: torch.Tensor | None) -> torch.Tensor:
    """What is to be packed."""
    delta = start - now
    return delta if held is None else delta.add_(held)
