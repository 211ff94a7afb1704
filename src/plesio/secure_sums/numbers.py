"""Fixed point: numbers as words modulo 2^32, whose sum over sites is the sum of the numbers.

Of a round of N samples, a site with n of them adds n / N times its numbers. So the sum is at most `clip`, and does not wrap
around. A unit is 2^-30 of `clip`; a float32 has 24 bits, which is what the sum is right to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plesio.tensors.arena import Arena, Kind

UNITS = 1 << 30


def trained(arena: Arena) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What is trained of a model of float32: it lies together."""
    ((start, end),) = arena.layout.stretches((Kind.TRAINED,))
    return np.frombuffer(arena.bytes, np.float32, (end - start) // 4, start)


def to_words(numbers: np.ndarray, clip: float, weight: float) -> float:
    """Bring `weight` times these float32, each cut off at `clip`, into their own place as words; the largest of them before."""
    largest = float(max(numbers.max(initial=0.0), -numbers.min(initial=0.0))) if weight else 0.0
    if not weight:  # nothing was written there
        numbers.fill(0.0)
    np.clip(numbers, -clip, clip, out=numbers)
    numbers /= np.float32(clip)
    numbers *= np.float32(weight * UNITS)
    np.rint(numbers, out=numbers)
    numbers.view(np.int32)[:] = numbers
    return largest


def to_numbers(words: np.ndarray, clip: float, share: float, into: np.ndarray) -> None:
    """Bring a sum into float32, of which `share` is the part of all samples whose numbers came."""
    np.multiply(words.view(np.int32), clip / (UNITS * share), out=into, casting="unsafe")
