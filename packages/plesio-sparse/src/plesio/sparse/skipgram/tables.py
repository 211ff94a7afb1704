"""What the kernels look up: made once a fit, from the counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.skipgram.step import CELLS, REACH

_ALL = 2**32 - 1


def keep(counts: NDArray[np.int64], sample: float) -> NDArray[np.uint32]:
    """How likely each word is kept, of 2**32: with f its share of the text, (√(f/sample) + 1) · sample/f, as in word2vec.c.

    >>> (keep(np.array([900, 100]), 1e-2) / 2**32).round(2).tolist()
    [0.12, 0.42]
    """
    if sample == 0:
        return np.full(len(counts), _ALL, np.uint32)
    share = counts / (sample * counts.sum())
    kept: NDArray[np.uint32] = (np.minimum(1, (np.sqrt(share) + 1) / share) * _ALL).astype(np.uint32)
    return kept


def alias(weights: NDArray[np.float64], parts: int) -> NDArray[np.uint64]:
    """Draw from the words of a part (those of equal rank mod `parts`) in proportion to their weights, in constant time.

    Take one of the part's words at random, and 32 more random bits: if they are at most the upper half of its entry it is
    drawn, else the word in the lower half is (Walker's alias method, as built by Vose, 1991).

    >>> [(int(entry) >> 32, int(entry) & _ALL) for entry in alias(np.array([3.0, 1.0]), parts=1)]
    [(4294967295, 0), (2147483647, 0)]
    """
    entries = np.empty(len(weights), np.uint64)
    for part in range(min(parts, len(weights))):
        own = np.arange(part, len(weights), parts)
        entries[own] = _vose(weights[own] / weights[own].mean(), own)
    return entries


def _vose(levels: NDArray[np.float64], words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Columns of height 1: what a column lacks is filled up by one word that has more.

    Words with more fill up the lacking columns in order, each until it has less than 1 itself: that is for the next.
    So it is told by running sums who fills up whom, and by how much.
    """
    share, other = np.ones(len(words)), words.copy()
    low, high = np.flatnonzero(levels < 1), np.flatnonzero(levels >= 1)
    if len(low) and len(high):
        lack, spare = np.cumsum(1 - levels[low]), np.cumsum(levels[high] - 1)
        begun_at = np.concatenate([[0.0], lack[:-1]])
        last = len(high) - 1  # sums that are equal but for rounding may point beyond it
        share[low] = levels[low]
        other[low] = words[high[np.minimum(np.searchsorted(spare, begun_at, side="right"), last)]]
        given = lack[np.minimum(np.searchsorted(lack, spare), len(low) - 1)]
        share[high] = np.where(spare > 0, 1 - np.maximum(given - spare, 0), 1)
        other[high[:-1]] = words[high[1:]]
    return ((share * _ALL).astype(np.uint64) << np.uint64(32)) | other.astype(np.uint64)


def sigmoid() -> NDArray[np.float32]:
    """σ at the left edges of `CELLS` cells from -REACH to REACH, as in word2vec.c, and once more at the end.

    >>> float(sigmoid()[CELLS // 2])
    0.5
    """
    return (1 / (1 + np.exp(-np.linspace(-REACH, REACH, CELLS + 1)))).astype(np.float32)
