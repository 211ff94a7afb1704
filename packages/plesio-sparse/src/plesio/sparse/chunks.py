"""Work is dealt in chunks: runs of neighbouring rows.

Rows read one after the other come from memory four times faster than rows read at random, so it is chunks that are
shuffled, not rows. Bounds and order depend on the data's size, the seed and the epoch alone, never on the threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def chunk_bounds(rows: int, size: int = 256) -> NDArray[np.int64]:
    """Where the chunks of `size` rows begin and end: chunk k holds the rows bounds[k] to bounds[k + 1] - 1.

    >>> chunk_bounds(600).tolist()
    [0, 256, 512, 600]
    """
    return np.minimum(np.arange(-(-rows // size) + 1, dtype=np.int64) * size, rows)


def chunk_order(chunks: int, seed: int, epoch: int) -> NDArray[np.uint32]:
    """The order in which an epoch deals its chunks: a permutation, the same for the same seed and epoch (from 0).

    >>> sorted(chunk_order(4, seed=0, epoch=0).tolist())
    [0, 1, 2, 3]
    """
    return np.random.default_rng((seed, epoch)).permutation(chunks).astype(np.uint32)
