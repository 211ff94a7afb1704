"""A device that every machine has: torch's lazy tensors, which record operations and run them when read."""

from __future__ import annotations

from typing import Any

import torch


def lazy() -> torch.device:
    """The device, set up in the process that asks first."""
    if not _begun:
        from torch._lazy import ts_backend

        ts_backend.init()
        library = torch.library.Library("aten", "IMPL")
        library.impl("copy_", _copy, "AutogradLazy", with_keyset=True)
        torch.Tensor._reduce_ex_internal = _reduced  # type: ignore[method-assign]
        _begun.append(library)
    return torch.device("lazy:0")


_begun: list[torch.library.Library] = []


_reduce = torch.Tensor._reduce_ex_internal


def _reduced(tensor: torch.Tensor, protocol: int) -> Any:
    """For torch.save, which finds no storage on this device."""
    return _reduce(tensor.cpu() if tensor.device.type == "lazy" else tensor, protocol)


def _copy(keys: Any, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copies from the device into a CPU tensor, which it lacks. (Without gradients.)"""
    if to.device.type == "cpu" and source.device.type == "lazy":
        return to.copy_(source.to("cpu", non_blocking=non_blocking))
    below = keys & torch._C._after_autograd_keyset
    copied: torch.Tensor = torch.ops.aten.copy_.default.redispatch(below, to, source, non_blocking)
    return copied
