"""A device of its own on every machine: torch's lazy tensors, which record what is done and do it when somebody looks."""

from __future__ import annotations

from typing import Any

import torch


def lazy() -> torch.device:
    """The device, in whatever process asks for it first."""
    if not _begun:
        from torch._lazy import ts_backend

        ts_backend.init()
        _begun.append(torch.Tensor.copy_)
        torch.Tensor.copy_ = _copy
    return torch.device("lazy:0")


_begun: list[Any] = []


def _copy(self: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What this device lacks: copying from it into a tensor of the CPU's."""
    if self.device.type == "cpu" and source.device.type == "lazy":
        source = source.cpu()
    return _begun[0](self, source, *args, **kwargs)
