"""How the rows are cut into chunks, and in what order an epoch deals these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.chunks import chunk_bounds, chunk_order
from plesio.sparse.conflict_free import colour
from plesio.sparse.csr import Rows

LARGEST_CHUNK = 256
_CHUNKS = 128  # at least this many per epoch, or one per row; only their order is shuffled
_WINDOW = 512  # mapped rows are shuffled within this many chunks, so that neighbours in the file are read together
_PIECE = 64  # rows of a conflict-free group a thread takes at once


@dataclass(frozen=True, slots=True)
class Deal:
    """Chunk c is the places bounds[c] to bounds[c + 1] − 1 of the order of work; place p is the row rows[p]."""

    rows: NDArray[np.uint32]
    bounds: NDArray[np.int64]
    group: NDArray[np.int64]  # of each chunk, if there are any: groups are shuffled, chunks in them are not
    parallel: NDArray[np.bool_]  # whether the rows of a group may be done in any order
    window: int  # chunks move within a window of so many

    def order(self, seed: int, epoch: int, shuffle: bool) -> NDArray[np.uint32]:
        chunks = len(self.bounds) - 1
        if not shuffle:
            return np.arange(chunks, dtype=np.uint32)
        if len(self.group):
            rank = np.argsort(chunk_order(len(self.parallel), seed, epoch))
            return np.argsort(rank[self.group], kind="stable").astype(np.uint32)
        order = chunk_order(chunks, seed, epoch)
        if self.window < chunks:
            order = order[np.argsort(order // self.window, kind="stable")]
        return order

    @property
    def parallel_share(self) -> float:
        """The share of rows in groups that threads can do together."""
        sizes = np.diff(self.bounds)
        return float(sizes[self.parallel[self.group]].sum() / max(sizes.sum(), 1)) if len(self.group) else 0.0


def deal(places: NDArray[np.uint32], mapped: bool = False, largest_chunk: int = LARGEST_CHUNK) -> Deal:
    """Chunks of neighbours in `places`; small ones where there are few, so that shuffling them is worth something."""
    size = max(1, min(largest_chunk, len(places) // _CHUNKS))
    bounds = chunk_bounds(len(places), size)
    window = _WINDOW if mapped else len(bounds)
    return Deal(places, bounds, np.zeros(0, np.int64), np.zeros(0, bool), window)


def deal_without_conflicts(rows: Rows, places: NDArray[np.uint32], seed: int) -> Deal:
    """Groups of rows that share no feature, from one fixed shuffle of the `places`."""
    shuffled = np.random.default_rng(seed).permutation(places)
    groups = colour(rows.indptr, rows.indices, shuffled)
    starts, group = [], []
    for number, (begin, end) in enumerate(zip(groups.bounds[:-1], groups.bounds[1:], strict=True)):
        pieces = np.arange(begin, end, _PIECE if groups.parallel[number] else max(end - begin, 1))
        starts.append(pieces)
        group.append(np.full(len(pieces), number))
    bounds = np.append(np.concatenate(starts), len(places)) if starts else np.zeros(1, np.int64)
    return Deal(groups.rows, bounds.astype(np.int64), np.concatenate(group), groups.parallel, len(bounds))


def are_clumped(targets: NDArray[np.float64]) -> bool:
    """Whether neighbours agree far more often than chance has it: such rows must be shuffled, chunks would not do.

    >>> are_clumped(np.repeat([-1.0, 1.0], [3000, 7000])), are_clumped(np.tile([-1.0, 1.0], 5000))
    (True, False)
    """
    if len(targets) <= 2 * _CHUNKS:
        return False
    above = targets > targets.mean()
    p = above.mean()
    return bool(np.mean(above[1:] != above[:-1]) < p * (1 - p) / 2)
