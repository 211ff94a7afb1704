"""A block of a tensor, as a rank of an island holds it, and where its elements lie in the whole tensor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import msgspec
import torch


class Region(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A block of a tensor: where it begins and how long it is, in each dimension."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """That block of the whole tensor, as a view."""
        return tensor[tuple(slice(at, at + size) for at, size in zip(self.start, self.shape, strict=True))]

    def within(self, outer: Region) -> Region:
        """The same block, counted from where `outer` begins."""
        return Region(tuple(mine - theirs for mine, theirs in zip(self.start, outer.start, strict=True)), self.shape)

    def meets(self, other: Region) -> bool:
        """Whether they have an element in common."""
        ends = zip(self.start, self.shape, other.start, other.shape, strict=True)
        return all(max(at, there) < min(at + size, there + length) for at, size, there, length in ends)

    def cut(self, part: int, parts: int) -> Region:
        """The `part`-th of so many even pieces.

        >>> Region((0, 0), (5, 3)).cut(0, 2), Region((4,), (1,)).cut(0, 2)
        (Region(start=(0, 0), shape=(2, 3)), Region(start=(4,), shape=(0,)))
        """
        if not self.shape:
            return self if part == 0 else EMPTY
        sizes = self.shape
        along = next((place for place, size in enumerate(sizes) if size >= parts), sizes.index(max(sizes)))
        begin, end = (sizes[along] * one // parts for one in (part, part + 1))
        start, shape = list(self.start), list(sizes)
        start[along], shape[along] = start[along] + begin, end - begin
        return Region(tuple(start), tuple(shape))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape has such a block.

        >>> Region((4,), (2,)).fits((6,)), Region((4,), (3,)).fits((6,)), EMPTY.fits(())
        (True, False, True)
        """
        if self == EMPTY:
            return True
        alike = len(self.start) == len(self.shape) == len(shape)
        ends = zip(self.start, self.shape, shape, strict=False)
        return alike and all(at >= 0 and size >= 0 and at + size <= whole for at, size, whole in ends)

    def stretches(self, shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """The elements (start, end) of the flat tensor of this shape that the block is made of.

        >>> list(Region((2, 0), (2, 3)).stretches((5, 3))), list(Region((0, 1), (2, 2)).stretches((5, 3)))
        ([(6, 12)], [(1, 3), (4, 6)])
        """
        if not self.numel:
            return
        whole = len(shape)  # from this dimension on the block has all of the tensor
        while whole and self.shape[whole - 1] == shape[whole - 1]:
            whole -= 1
        outer = max(0, whole - 1)
        length, steps = prod(self.shape[outer:]), [prod(shape[place + 1 :]) for place in range(len(shape))]
        first = sum(at * step for at, step in zip(self.start, steps, strict=True))
        for place in product(*(range(size) for size in self.shape[:outer])):
            start = first + sum(at * step for at, step in zip(place, steps, strict=False))
            yield start, start + length


EMPTY = Region((), (0,))
"""Nothing of a tensor without dimensions."""
