"""Shamir's secret sharing: any `threshold` parts of a secret give it back, and fewer tell nothing about it.

The secret is the value at 0 of a polynomial of degree threshold - 1 over a prime field, a part its value at another place.
Source: Shamir 1979, "How to share a secret", CACM 22(11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PRIME = 2**256 + 297
"""The smallest prime above all secrets of 32 bytes."""
PART_BYTES = 33


def split(secret: bytes, places: Iterable[int], coefficients: Sequence[int]) -> dict[int, bytes]:
    """The parts of a secret of 32 bytes at these places, each above 0. There is a random coefficient for each part that is needed
    but one.

    >>> join({place: part for place, part in split(b"x" * 32, [1, 2, 3], [7]).items() if place != 2}) == b"x" * 32
    True
    """
    parts = {}
    for place in places:
        value = 0
        for coefficient in reversed((int.from_bytes(secret), *coefficients)):
            value = (value * place + coefficient) % PRIME
        parts[place] = value.to_bytes(PART_BYTES)
    return parts


def join(parts: Mapping[int, bytes]) -> bytes:
    """The secret of these parts; something else if they are too few, or one is wrong."""
    secret = 0
    for place, part in parts.items():
        above = below = 1
        for other in parts:
            if other != place:
                above, below = above * other % PRIME, below * (other - place) % PRIME
        secret += int.from_bytes(part) * above * pow(below, -1, PRIME)
    return (secret % PRIME % 2**256).to_bytes(32)
