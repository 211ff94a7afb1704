"""In which order ratings lie in memory, and which of them threads may do at once.

Users are dealt at random into strips, few enough that their rows fit the cache nearest to a core, and a strip's
ratings lie together, in random order. A thread takes a strip at a time: its users' rows come from the near cache and no other
thread writes them, so that threads meet at items only. It needs fewer sweeps, too, than ratings in random order: what a
user's first ratings taught is used while the sweep is still under way.

A grid, the deterministic order, cuts items as well: blocks of a diagonal share neither a user nor an item (Gemulla et al.,
2011).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.chunks import chunk_order
from plesio.sparse.epochs import advance, slices
from plesio.sparse.factorisation.dealing import Parts, Triples, deal
from plesio.sparse.factorisation.kernels import Rivals

STRIP_BYTES = 128 << 10
"""Users' rows in a strip: a quarter of a small second-level cache, for the items want room as well."""
STRIPS_LEAST = 128  # so that threads end at about the same time, and that a strip's order matters little
STRIPS_MOST = 65_535  # two bytes each
BLOCKS = 16  # blocks a side of the grid: for up to as many threads, and never depending on their number


@dataclass(frozen=True)
class Layout:
    """The ratings in the order they are done in; chunk k holds bounds[k] to bounds[k + 1] - 1.

    In a grid chunk k is the block in row k // BLOCKS and column k % BLOCKS; `columns` says where each item is.
    """

    users: NDArray[np.uint32]
    items: NDArray[np.uint32]
    ratings: NDArray[np.float32]
    bounds: NDArray[np.int64]
    columns: NDArray[np.uint16] | None = None
    weights: NDArray[np.float32] | None = None

    @property
    def chunks(self) -> int:
        return len(self.bounds) - 1

    @property
    def in_grid(self) -> bool:
        """Whether chunks are blocks; else they are strips or pieces of them."""
        return self.columns is not None

    def order(self, seed: int, epoch: int) -> NDArray[np.uint32]:
        """The chunks in an epoch's order; in a grid diagonal after diagonal."""
        if not self.in_grid:
            return chunk_order(self.chunks, seed, epoch)
        diagonals, row = chunk_order(BLOCKS, seed, epoch)[:, None], np.arange(BLOCKS)
        return (row * BLOCKS + (row + diagonals) % BLOCKS).reshape(-1).astype(np.uint32)

    def rounds(self, chunks: int) -> Iterable[tuple[int, int]]:
        """(first, stop) of those `chunks` of an order that threads may do at once; between rounds they wait."""
        return _diagonals() if self.in_grid else slices(chunks, whole=self.chunks)

    def rivals(self, known: NDArray[np.bool_], seen: Seen) -> Rivals:
        """Where `bpr` draws items from: all that are `known`, in a grid those of the block's own columns."""
        column_of = np.where(known, 0 if self.columns is None else self.columns, BLOCKS)
        items = np.argsort(column_of, kind="stable").astype(np.uint32)
        edges = np.searchsorted(column_of[items], np.arange(BLOCKS + 1))
        column = np.arange(self.chunks) % BLOCKS if self.in_grid else np.zeros(self.chunks, np.intp)
        return Rivals(items, edges[column], edges[column + 1], seen.starts, seen.items, np.uint64(0))


def _diagonals() -> Iterable[tuple[int, int]]:
    for diagonal in range(BLOCKS):
        yield diagonal * BLOCKS, (diagonal + 1) * BLOCKS
        advance(1 / BLOCKS)


def of_few(given: Triples, lay: Callable[[Triples, tuple[int, int]], Layout]) -> Layout:
    """`lay` the rows that occur, as if there were no others: a few ratings cost no more than themselves."""
    (users, who), (items, what) = (np.unique(ids, return_inverse=True) for ids in given[:2])
    few = Triples(who.astype(np.uint32), what.astype(np.uint32), given.ratings)
    layout = lay(few, (len(users), len(items)))
    return replace(layout, users=users[layout.users], items=items[layout.items])


def strips(given: Triples, shape: tuple[int, int], row_bytes: int, seed: int, threads: int = 1) -> Layout:
    """Ratings in strips of users; `shape` is the number of users and of items."""
    rows = shape[0]
    count = min(max(rows * row_bytes // STRIP_BYTES, STRIPS_LEAST), rows, STRIPS_MOST)
    rng = np.random.default_rng(seed)
    strip_of = (rng.permutation(rows) * count // rows).astype(np.uint16)
    parts = Parts(strip_of, np.zeros(shape[1], np.uint16))
    dealt, edges = deal(given, parts, count, rng.integers(2**63, dtype=np.uint64), threads)
    longest = -(-len(given.users) // STRIPS_LEAST)  # a user with most of the ratings is not one thread's alone
    return Layout(*dealt, np.union1d(edges, np.arange(0, len(given.users), longest)))


def blocks(given: Triples, shape: tuple[int, int], seed: int, threads: int = 1) -> Layout:
    """Ratings in the blocks of a grid; which users and items share a block is random."""
    rng = np.random.default_rng(seed)
    row_of, column_of = (_bands(ids, rows, rng) for ids, rows in zip(given[:2], shape, strict=True))
    parts = Parts(row_of * np.uint16(BLOCKS), column_of)
    dealt, edges = deal(given, parts, BLOCKS**2, rng.integers(2**63, dtype=np.uint64), threads)
    return Layout(*dealt, edges, column_of)


def _bands(ids: NDArray[np.uint32], rows: int, rng: np.random.Generator) -> NDArray[np.uint16]:
    """For each row one of `BLOCKS` bands, drawn so that all hold about equally many ratings."""
    order = rng.permutation(rows)
    counts = np.bincount(ids, minlength=rows)[order]
    middle = np.cumsum(counts) - counts / 2
    bands = np.empty(rows, np.uint16)
    bands[order] = np.minimum(middle * BLOCKS / len(ids), BLOCKS - 1)
    return bands


class Seen:
    """Which items each user has: those of `user` are items[starts[user]:starts[user + 1]], sorted, and what was added."""

    def __init__(self, users: NDArray[np.uint32], items: NDArray[np.uint32], shape: tuple[int, int]) -> None:
        pairs = np.sort(users.astype(np.uint64) << np.uint64(32) | items)
        self.items = (pairs & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        counts = np.bincount((pairs >> np.uint64(32)).astype(np.int64), minlength=shape[0])
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._added: defaultdict[int, list[int]] = defaultdict(list)

    def add(self, users: NDArray[Any], items: NDArray[Any]) -> None:
        for user, item in zip(users.tolist(), items.tolist(), strict=True):
            self._added[user].append(item)

    def of(self, user: int) -> NDArray[np.uint32]:
        early = self.items[slice(*self.starts[user : user + 2])] if user < len(self.starts) - 1 else self.items[:0]
        return np.append(early, self._added.get(user, [])).astype(np.uint32)
