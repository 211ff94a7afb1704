"""Several contributions become one, of which a few may be anything: coordinate by coordinate, or by how far they are apart.

A block of each contribution is worked on at a time, so nothing of the model's size is made. A NaN counts as larger than all
numbers: a worker says itself whether its numbers are finite, and may lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from plesio.strategy.answers import Krum, LowRank, Mean, Median, TrimmedMean
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.low_rank import ProductMean
from plesio.tensors.mean import mean_into, weighted_into

BLOCK = 1 << 14
"""Elements of each contribution in a block, so that a few of them fit the cache."""
Combined = Callable[..., None]
"""Makes one contribution (`Arena`) of several (`Sequence[Arena]`), but for segments of which all is absent (`int`). It may lie
where the first one does. What is not robust also wants their shares, and what they are differences from, if they are."""


def middle(cut: Callable[[int], int]) -> Combined:
    """Of each coordinate the mean of n values without the `cut(n)` smallest and largest; where these are equal, to the bit. Of
    whole numbers and bools, such as a batch-norm layer's count of batches, the one in the middle."""

    def combine(out: Arena, parts: Sequence[Arena], absent: int, *_: object) -> None:
        first, behind = cut(len(parts)), len(parts) - cut(len(parts))
        for target, *values in blocks([out, *parts], absent, Kind.TRAINED, Kind.BUFFER):
            ordered = in_order(torch.stack(values))
            if target.is_floating_point():
                weighted_into(target, ordered[first:behind], [1 / (behind - first)] * (behind - first))
                torch.where(ordered[first] == ordered[behind - 1], ordered[first], target, out=target)
            else:
                target.copy_(ordered[(len(parts) - 1) // 2])

    return combine


def in_order(values: torch.Tensor) -> list[torch.Tensor]:
    """The rows sorted column by column, in the same memory: by neighbours that change places (odd-even transposition), several
    times faster than a sort of few rows. It would spread a NaN.

    >>> in_order(torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, float("nan")]]))[1]
    tensor([2., 2.])
    """
    if values.sum().isnan():
        return [*values.sort(dim=0).values]
    rows, spare = list(values), torch.empty_like(values[0])
    for turn in range(len(rows)):
        for low in range(turn % 2, len(rows) - 1, 2):
            torch.minimum(rows[low], rows[low + 1], out=spare)
            torch.maximum(rows[low], rows[low + 1], out=rows[low + 1])
            rows[low], spare = spare, rows[low]
    return rows


def krum(rule: Krum) -> Combined:
    """The mean of those that are closest to the others; of equal ones the lower workers'."""

    def combine(out: Arena, parts: Sequence[Arena], absent: int, *_: object) -> None:
        nearest = distances(parts, absent).sort(dim=1).values[:, : len(parts) - rule.f - 2]
        closest = nearest.sum(1).argsort(stable=True)[: rule.keep].tolist()
        chosen = [
            parts[one] for one in sorted(closest)
        ]  # the first part, where `out` may lie, is read before it is written
        mean_into(out, chosen, [1 / len(chosen)] * len(chosen), absent=absent)

    return combine


def distances(parts: Sequence[Arena], absent: int) -> torch.Tensor:
    """How far each is from each, squared; from itself infinitely. In differences of float64: the products of a Gram matrix would
    lose what is small beside one that is large."""
    rows, columns = torch.triu_indices(len(parts), len(parts), 1)
    square = torch.full((len(parts), len(parts)), torch.inf, dtype=torch.float64)
    sums = torch.zeros(len(rows), dtype=torch.float64)
    for values in blocks(parts, absent, Kind.TRAINED):
        sums += torch.pdist(torch.stack(values).double()).square_()
    square[rows, columns] = square[columns, rows] = sums
    return square


def blocks(arenas: Sequence[Arena], absent: int, *kinds: Kind) -> Iterator[tuple[torch.Tensor, ...]]:
    """The segments of these kinds, cut alike into blocks, but for those of which all is absent."""
    layout = arenas[0].layout
    for place, one in enumerate(layout.segments):
        if one.kind in kinds and place not in layout.lacking(absent):
            yield from zip(*(torch.split(arena.flat[place], BLOCK) for arena in arenas), strict=True)


COMBINED: dict[type, Callable[[Any], Combined] | None] = {
    Mean: None,
    Median: lambda _: middle(lambda count: (count - 1) // 2),
    TrimmedMean: lambda rule: middle(lambda count: int(rule.part * count + 1e-9)),
    Krum: krum,
    LowRank: ProductMean,
}
"""The arithmetic of each answer to `combine`, but for the mean, which is made on the way."""
