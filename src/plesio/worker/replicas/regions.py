"""Which part of each of a model's tensors a rank of an island holds, and which part of it the rank sends.

A tensor is laid out whole in the run's memory. A rank holds a block of it: all of an ordinary tensor, its shard of a DTensor.
What several ranks hold alike is cut among them, so that each sends as much.

    weight (8, 6), Shard(0) over 2 ranks      rank 0 holds and sends rows 0-3, rank 1 rows 4-7
    bias (6,), the same on both               each holds all of it; rank 0 sends 0-2, rank 1 sends 3-5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from plesio.errors import ConfigurationError
from plesio.tensors.local import is_split, local_of
from plesio.tensors.region import Region

SHARDS = (
    "Shard",
    "_StridedShard",
)  # the second is FSDP2's of what tensor parallelism has split; of even sizes it is a block


def region_of(name: str, tensor: torch.Tensor) -> Region:
    """What this process holds of it.

    Raises:
        ConfigurationError: what a DTensor's processes hold is no block of it.
    """
    if not is_split(tensor):
        return Region((0,) * tensor.dim(), tuple(tensor.shape))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    placements, local = tensor.placements, local_of(tensor)  # type: ignore[attr-defined]
    shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)  # type: ignore[attr-defined]
    known = all(one.is_replicate() or type(one).__name__ in SHARDS for one in placements)
    if not known or tuple(shape) != tuple(local.shape):
        raise ConfigurationError(
            f"{name} is placed as {', '.join(map(str, placements))}, and this rank has {list(local.shape)} of it, "
            f"{list(tensor.shape)}: a rank holds a block of a tensor or all of it, as torch's fully_shard and parallelize_module "
            "place them"
        )
    return Region(tuple(start), tuple(shape))


class RankShare(NamedTuple):
    """A rank's part of one tensor: what it holds, what it sends of that, and whether `all` ranks hold the same. `pieces`: of one
    that several ranks hold, what each sends."""

    holds: Region
    sends: Region
    all: bool
    pieces: tuple[Region, ...] = ()


def shared_out(
    names: Sequence[str], whole: Sequence[Region], by_rank: Sequence[Sequence[Region]], rank: int
) -> list[RankShare]:
    """What rank `rank` holds and sends of each tensor, where `by_rank` says what each rank holds.

    Raises:
        ConfigurationError: what the ranks hold does not make up a tensor.
    """
    held = []
    for place, (name, all_of_it) in enumerate(zip(names, whole, strict=True)):
        regions = [rank_holds[place] for rank_holds in by_rank]
        distinct = [one for one in dict.fromkeys(regions) if one.numel]
        overlap = any(one.meets(other) for at, one in enumerate(distinct) for other in distinct[:at])
        if overlap or sum(one.numel for one in distinct) != all_of_it.numel:
            parts = ", ".join(f"{list(one.start)} + {list(one.shape)}" for one in distinct)
            raise ConfigurationError(
                f"what the {len(by_rank)} ranks of a worker hold of {name}, {list(all_of_it.shape)}, does not make it up: "
                f"{parts}; split it with torch's fully_shard or parallelize_module, over worker.island.mesh"
            )
        holders = {region: [one for one, other in enumerate(regions) if other == region] for region in set(regions)}
        pieces = [region.cut(holders[region].index(one), len(holders[region])) for one, region in enumerate(regions)]
        shared = tuple(pieces) if len(holders) < len(regions) else ()
        held.append(RankShare(regions[rank], pieces[rank], len(holders) == 1, shared))
    return held


def agreed(
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    rank: int,
    rows: Callable[[Sequence[int]], list[list[int]]],
) -> list[RankShare]:
    """`shared_out` for these tensors of a model; `rows` brings the numbers of every rank."""
    whole = [Region((0,) * one.dim(), tuple(one.shape)) for one in tensors]
    own = [region_of(name, one) for name, one in zip(names, tensors, strict=True)]
    every = rows([number for region in own for number in (*region.start, *region.shape)])
    return shared_out(names, whole, [_regions(numbers, tensors) for numbers in every], rank)


def _regions(numbers: list[int], tensors: Sequence[torch.Tensor]) -> list[Region]:
    found, at = [], 0
    for one in tensors:
        start, shape = (tuple(numbers[begin : begin + one.dim()]) for begin in (at, at + one.dim()))
        found.append(Region(start, shape))
        at += 2 * one.dim()
    return found
