"""Checksums of parameters: of a window that moves from version to version, and of everything.

A checksum of everything at every fold would cost as much as a small model's fold. A difference in one element spreads to
all within a few steps, so a window finds it soon. A small model is one window.
"""

from __future__ import annotations

import torch
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

WINDOW = 1 << 15
"""Bytes per window."""
HASH = 1 << 64
"""Checksums are below this."""


def window_checksum(memory: memoryview, version: int) -> int:
    """xxh3-64 of the window of `memory` (bytes) for `version`.

    >>> window_checksum(memoryview(bytes(100)), 1) == window_checksum(memoryview(bytes(100)), 7)
    True
    """
    start = version % -(-len(memory) // WINDOW) * WINDOW
    return xxh3_64_intdigest(memory[start : start + WINDOW])


def weights_hash(memory: torch.Tensor) -> str:
    """xxh3-64 of all of `memory` (bytes), in hexadecimal digits."""
    return xxh3_64_hexdigest(memory.numpy().data)
