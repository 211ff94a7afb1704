"""At prepare: tensors that overlap in memory are refused, for the run gives each tensor memory of its own.

Weights tied as one parameter are one tensor with two names, and stay tied. Weights tied by their memory (`.data =`, or a
view registered as a parameter or buffer of its own) would come apart silently. Tensors that nobody trains may overlap, such
as each layer's view of one mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from plesio.errors import ConfigurationError
from plesio.tensors.local import local_of

ADDRESSED = ("cpu", "cuda")  # the devices whose tensors have addresses


class _Extent(NamedTuple):
    """Tensor `number` lies from `start` to before `end`; `gapless`: all of that is its own."""

    start: int
    number: int
    end: int
    gapless: bool


def check_apart(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Raise `ConfigurationError` if two of a model's tensors overlap and one of them is trained. Only certain overlaps count:
    one begins where another does, or within one without gaps. Columns of one matrix interleave and share nothing."""
    local = list(map(local_of, tensors))
    before = widest = _Extent(-1, -1, -1, False)  # `widest`: of those without gaps the one that reaches furthest
    for place in sorted(_place(i, one) for i, one in enumerate(local) if one.numel() and one.device.type in ADDRESSED):
        for other in (before, widest):
            if place.start == other.start or (other.gapless and place.start < other.end):
                first, second = sorted((place.number, other.number))
                if tensors[first].requires_grad or tensors[second].requires_grad:
                    raise ConfigurationError(
                        f"{names[first]} and {names[second]} lie in the same memory and are two tensors, which plesio would "
                        f"untie; tie them as one parameter ({names[second]} = {names[first]}, without .data), register one "
                        "tensor and take both from it in forward, or give each its own with .clone()"
                    )
        before = place
        if place.gapless and place.end > widest.end:
            widest = place


def _place(number: int, tensor: torch.Tensor) -> _Extent:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return _Extent(start, number, start + span * tensor.element_size(), span == tensor.numel())
