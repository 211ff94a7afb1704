"""A device of its own on every machine: torch's lazy tensors, which record what is done and do it when somebody looks."""

from __future__ import annotations

from typing import Any

import torch


def lazy() -> torch.device:
    """The device, in whatever process asks for it first."""
    if not _begun:
        from torch._lazy import ts_backend

        ts_backend.init()
        library = torch.library.Library("aten", "IMPL")
        library.impl("copy_", _copy, "AutogradLazy", with_keyset=True)
        _begun.append(library)
    return torch.device("lazy:0")


_begun: list[torch.library.Library] = []


def _copy(keys: Any, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What this device lacks: copying from it into a tensor of the CPU's. (Not for gradients to flow through.)"""
    if to.device.type == "cpu" and source.device.type == "lazy":
        return to.copy_(source.cpu())
    below = keys & torch._C._after_autograd_keyset
    copied: torch.Tensor = torch.ops.aten.copy_.default.redispatch(below, to, source, non_blocking)
    return copied
