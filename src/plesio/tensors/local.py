"""Tensors of which a process holds a part: torch's DTensor, as FSDP2 and tensor parallelism make them."""

from __future__ import annotations

import torch


def is_split(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor. Its shape is the whole tensor's; its own memory is elsewhere."""
    return hasattr(tensor, "to_local")


@torch.no_grad()
def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it, without its history: of a DTensor the local part, of any other tensor all of it.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> local_of(weight).fill_(3.0), weight
    (tensor([3., 3.]), Parameter containing:
    tensor([3., 3.], requires_grad=True))
    """
    whole: torch.Tensor = tensor.to_local() if is_split(tensor) else tensor  # type: ignore[attr-defined]
    return whole.detach()


def split_like(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """What is split as `tensor` is, where this process holds `local` of it."""
    if not is_split(tensor):
        return local
    from torch.distributed.tensor import DTensor

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())
