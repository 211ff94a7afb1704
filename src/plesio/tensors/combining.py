"""Several contributions become one, of which a few may be anything: coordinate by coordinate, or by the distances between them.

A block of each contribution is looked at at once, so that nothing of the model's size is made. A NaN counts as larger than all
numbers, wherever the others decide: that a worker's numbers are finite is what it says itself.

Of whole numbers and bools (a batch-norm layer's count of batches) the middle one is taken. Where the values that are left are
equal the result is that value, not a mean that rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from plesio.strategy.answers import Krum, Mean, Median, TrimmedMean
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.mean import mean_into, weighted_into

BLOCK = 1 << 14
"""Elements of each contribution in a block: a few of them fit the cache."""
Combined = Callable[[Arena, Sequence[Arena], int], None]
"""Makes one contribution of several, but for segments of which all is absent; it may lie where the first one does."""


def middle(cut: Callable[[int], int]) -> Combined:
    """By coordinate: the mean of what is left of n values without the `cut(n)` smallest and largest."""

    def combine(out: Arena, parts: Sequence[Arena], absent: int) -> None:
        count = len(parts)
        for segment in present(out, absent, Kind.TRAINED, Kind.BUFFER):
            for target, *values in blocks([out, *parts], segment):
                ordered = in_order(torch.stack(values))
                left = ordered[cut(count) : count - cut(count)]
                if target.is_floating_point():
                    weighted_into(target, left, [1 / len(left)] * len(left))
                    torch.where(left[0] == left[-1], left[0], target, out=target)
                else:
                    target.copy_(ordered[(count - 1) // 2])

    return combine


def in_order(values: torch.Tensor) -> list[torch.Tensor]:
    """The rows sorted by column, whose memory is used. A network of minima and maxima is several times faster than sorting, but
    would spread a NaN.

    >>> in_order(torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, float("nan")]]))[1]
    tensor([2., 2.])
    """
    if values.sum().isnan():
        return [*values.sort(dim=0).values]
    rows, spare = list(values), torch.empty_like(values[0])
    for low, high in network(len(rows)):
        torch.minimum(rows[low], rows[high], out=spare)
        torch.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]
    return rows


@cache
def network(count: int) -> tuple[tuple[int, int], ...]:
    """Which two of `count` to compare and to exchange in turn, so that all are sorted: Batcher's odd-even merge sort (1968).

    >>> network(3)
    ((0, 1), (0, 2), (1, 2))
    """
    pairs, merged = [], 1
    while merged < count:
        step = merged
        while step:
            for start in range(step % merged, count - step, 2 * step):
                for low in range(start, min(start + step, count - step)):
                    if low // (2 * merged) == (low + step) // (2 * merged):
                        pairs.append((low, low + step))
            step //= 2
        merged *= 2
    return tuple(pairs)


def krum(rule: Krum) -> Combined:
    """The mean of those that are closest to the others."""

    def combine(out: Arena, parts: Sequence[Arena], absent: int) -> None:
        nearest = distances(parts, absent).sort(dim=1).values[:, : len(parts) - rule.f - 2]
        chosen = (
            nearest.sum(1).argsort(stable=True)[: rule.keep].sort().values.tolist()
        )  # in order: `out` may be the first
        mean_into(out, [parts[one] for one in chosen], [1 / len(chosen)] * len(chosen), absent=absent)

    return combine


def distances(parts: Sequence[Arena], absent: int) -> torch.Tensor:
    """The squared distance of each from each, over what is trained; of each from itself infinity."""
    count = len(parts)
    rows, columns = torch.triu_indices(count, count, 1)
    sums = torch.zeros(len(rows), dtype=torch.float64)
    for segment in present(parts[0], absent, Kind.TRAINED):
        for values in blocks(parts, segment):
            sums += torch.pdist(torch.stack(values).double()).square_()
    square = torch.full((count, count), torch.inf, dtype=torch.float64)
    square[rows, columns] = square[columns, rows] = sums
    return square


def present(arena: Arena, absent: int, *kinds: Kind) -> list[int]:
    """The segments of these kinds, but for those of which all is absent."""
    lacking = arena.layout.lacking(absent)
    return [place for place, one in enumerate(arena.layout.segments) if one.kind in kinds and place not in lacking]


def blocks(arenas: Sequence[Arena], segment: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """A segment of each, cut alike into blocks."""
    return zip(*(torch.split(one.flat[segment], BLOCK) for one in arenas), strict=True)


COMBINED: dict[type, Callable[[Any], Combined] | None] = {
    Mean: None,
    Median: lambda _: middle(lambda count: (count - 1) // 2),
    TrimmedMean: lambda rule: middle(lambda count: int(rule.part * count)),
    Krum: krum,
}
"""The arithmetic of each answer to `combine`, but for the mean, which needs nothing of its own."""
