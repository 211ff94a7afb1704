"""Fast arithmetic on flat tensors: small ones through NumPy's view of the same memory.

torch's overhead for a few thousand numbers exceeds the operation itself, several times so with cold caches
(benchmarks/README.md). A rule written with `+ - * /` is the same for both, and so are its bits: both round as IEEE 754
says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

Operand = Any
"""A flat tensor, or NumPy's view of one."""
SMALL = 1 << 17
"""Elements up to which NumPy is quicker; beyond, torch may use several threads."""
CHUNK = 1 << 18
"""Elements per piece, so that temporaries fit the cache."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def quiet(function: _Function) -> _Function:
    """`function` without NumPy's warnings of overflow, as torch has none."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")(function)


def is_small(flat: torch.Tensor) -> bool:
    return flat.is_cpu and flat.numel() <= SMALL and flat.dtype in (torch.float32, torch.float64)


def operand(flat: torch.Tensor) -> Operand:
    """`flat` as an operand of arithmetic: NumPy's view if it is small, else itself.

    >>> weights = torch.ones(2)
    >>> whole = operand(weights)
    >>> whole -= 0.5
    >>> weights
    tensor([0.5000, 0.5000])
    """
    return flat.numpy() if is_small(flat) else flat


def pieces(*flats: Operand) -> Sequence[tuple[Operand, ...]]:
    """Flat tensors of equal length, split alike into pieces of at most CHUNK elements.

    >>> [[len(piece) for piece in both] for both in pieces(torch.zeros(CHUNK + 3), torch.ones(CHUNK + 3))]
    [[262144, 262144], [3, 3]]
    """
    length = len(flats[0])
    if length <= CHUNK:
        return (flats,)
    return [tuple(flat[start : start + CHUNK] for flat in flats) for start in range(0, length, CHUNK)]
