"""In which order ratings lie in memory, and which of them threads may do at once.

Users are dealt at random into strips, few enough that their rows fit the cache nearest to a core, and a strip's
ratings lie together, in random order. A thread takes a strip at a time: its users' rows come from the near cache and no other
thread writes them, so that threads meet at items only. It needs fewer sweeps, too, than ratings in random order: what a
user's first ratings taught is used while the sweep is still under way.

A grid, the deterministic order, cuts items as well: blocks of a diagonal share neither a user nor an item.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from plesio.hogwild.chunks import chunk_order
from plesio.hogwild.conflict_free import grid
from plesio.hogwild.epochs import advance, slices
from plesio.hogwild.factorisation.kernels import Rivals, mix

STRIP_BYTES = 128 << 10
"""Users' rows in a strip: a quarter of a small second-level cache, for the items want room as well."""
STRIPS_LEAST = 128
"""So that threads end at about the same time, and that a strip's order matters little."""
STRIPS_MOST = 65_535  # two bytes each
BLOCKS = 16
"""Blocks a side of the grid: for up to as many threads, and never depending on their number."""


@dataclass(frozen=True)
class Layout:
    """The ratings in the order they are done in; chunk k holds bounds[k] to bounds[k + 1] - 1."""

    users: NDArray[np.uint32]
    items: NDArray[np.uint32]
    ratings: NDArray[np.float32]
    bounds: NDArray[np.int64]
    in_grid: bool

    @property
    def chunks(self) -> int:
        """How many."""
        return len(self.bounds) - 1

    def order(self, seed: int, epoch: int) -> NDArray[np.uint32]:
        """The chunks in an epoch's order; in a grid diagonal after diagonal."""
        if not self.in_grid:
            return chunk_order(self.chunks, seed, epoch)
        diagonals = chunk_order(BLOCKS, seed, epoch)
        order = diagonals[:, None] * BLOCKS + np.arange(BLOCKS)
        return order.reshape(-1).astype(np.uint32)

    def rounds(self) -> Iterable[tuple[int, int]]:
        """(first, stop) of the chunks in that order that threads may do at once; between rounds they wait."""
        return slices(self.chunks) if not self.in_grid else _diagonals()

    def rivals(self, known: NDArray[np.bool_], seen: Seen) -> Rivals:
        """Where `bpr` draws items from: all that are `known`, in a grid those of the block's own columns."""
        if not self.in_grid:
            items = np.flatnonzero(known).astype(np.uint32)
            first = np.zeros(self.chunks, np.int64)
            return Rivals(items, first, np.full(self.chunks, len(items)), seen.starts, seen.items, np.uint64(0))
        blocks = np.repeat(np.arange(self.chunks), np.diff(self.bounds))
        across = np.full(len(known), BLOCKS)
        across[self.items] = (blocks + blocks // BLOCKS) % BLOCKS
        items = np.argsort(across, kind="stable").astype(np.uint32)
        edges = np.searchsorted(across[items], np.arange(BLOCKS + 1))
        block = np.arange(self.chunks)
        column = (block + block // BLOCKS) % BLOCKS
        return Rivals(items, edges[column], edges[column + 1], seen.starts, seen.items, np.uint64(0))


def _diagonals() -> Iterable[tuple[int, int]]:
    for diagonal in range(BLOCKS):
        yield diagonal * BLOCKS, (diagonal + 1) * BLOCKS
        advance(1 / BLOCKS)


def strips(
    users: NDArray[np.uint32],
    items: NDArray[np.uint32],
    ratings: NDArray[np.float32],
    rows: int,
    row_bytes: int,
    seed: int,
) -> Layout:
    """Ratings in strips of users, of which there are `rows`."""
    count = min(max(rows * row_bytes // STRIP_BYTES, STRIPS_LEAST), rows, STRIPS_MOST)
    rng = np.random.default_rng(seed)
    strip_of = (rng.permutation(rows) * count // rows).astype(np.uint16)
    sizes = np.bincount(strip_of, np.bincount(users, minlength=rows), count)
    edges = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    dealt = np.empty_like(users), np.empty_like(items), np.empty_like(ratings)
    _deal(users, items, ratings, *dealt, strip_of, edges, rng.integers(2**63, dtype=np.uint64))
    longest = -(-len(users) // STRIPS_LEAST)  # a user with most of the ratings is not one thread's alone
    bounds = np.union1d(edges, np.arange(0, len(users), longest))
    return Layout(*dealt, bounds, in_grid=False)


@njit(nogil=True, cache=True)
def _deal(
    users: Any, items: Any, ratings: Any, to_users: Any, to_items: Any, to_ratings: Any, strip_of: Any, edges: Any, key: Any
) -> None:  # fmt: skip
    """Sort by strip, then shuffle each strip where it lies, in the cache: that is much faster than through all of memory."""
    ends = edges.copy()
    for at in range(len(users)):
        strip = strip_of[users[at]]
        to = ends[strip]
        ends[strip] = to + 1
        to_users[to], to_items[to], to_ratings[to] = users[at], items[at], ratings[at]
    for strip in range(len(edges) - 1):
        first = edges[strip]
        for at in range(edges[strip + 1] - 1, first, -1):  # Fisher and Yates
            number = mix(key + np.uint64(at)) >> np.uint64(32)
            other = first + np.int64(number * np.uint64(at - first + 1) >> np.uint64(32))
            to_users[at], to_users[other] = to_users[other], to_users[at]
            to_items[at], to_items[other] = to_items[other], to_items[at]
            to_ratings[at], to_ratings[other] = to_ratings[other], to_ratings[at]


def blocks(
    users: NDArray[np.uint32],
    items: NDArray[np.uint32],
    ratings: NDArray[np.float32],
    shape: tuple[int, int],
    seed: int,
) -> Layout:
    """Ratings in the blocks of a grid, diagonal by diagonal; which users and items share a block is random."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(users)).astype(np.uint32)
    places = rng.permutation(shape[0]).astype(np.uint32), rng.permutation(shape[1]).astype(np.uint32)
    cut = grid(places[0][users[shuffled]], places[1][items[shuffled]], BLOCKS)
    order = shuffled[cut.order]
    return Layout(users[order], items[order], ratings[order], cut.bounds.astype(np.int64), in_grid=True)


class Seen:
    """Which items each user has: those of `user` are items[starts[user]:starts[user + 1]], sorted."""

    def __init__(self, users: NDArray[np.uint32], items: NDArray[np.uint32], shape: tuple[int, int]) -> None:
        pairs = np.sort(users.astype(np.uint64) << np.uint64(32) | items)
        self.items = (pairs & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        counts = np.bincount((pairs >> np.uint64(32)).astype(np.int64), minlength=shape[0])
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def of(self, user: int) -> NDArray[np.uint32]:
        """The items of a user's row."""
        return self.items[self.starts[user] : self.starts[user + 1]]
