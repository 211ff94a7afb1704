"""A set of a model's tensors as an integer: bit i is that of tensor i, in the order of the layout."""

from __future__ import annotations

ALL = -1


def bits(tensors: int) -> bytes:
    """That set as a message has it; empty for none.

    >>> bits(0), bits(1 | 1 << 9), of_bits(bits(1 | 1 << 9)) == 1 | 1 << 9
    (b'', b'\\x01\\x02', True)
    """
    return tensors.to_bytes((tensors.bit_length() + 7) // 8, "little")


def of_bits(data: bytes) -> int:
    return int.from_bytes(data, "little")


def members_of(tensors: int) -> tuple[int, ...]:
    """What is in the set.

    >>> members_of(1 | 1 << 9)
    (0, 9)
    """
    assert tensors >= 0, "a set has members that can be named"
    return tuple(one for one in range(tensors.bit_length()) if tensors >> one & 1)
