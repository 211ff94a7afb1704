"""The distinct keys of a batch, and gradients summed by key."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled
from plesio.kernels.intrinsics import prefetch
from plesio.tables.index import LOW, mixed

_AHEAD = 16
_SMALLEST = 1 << 10  # slots
_U32 = np.uint64(32)


class Distinct:
    """Distinct keys, in the order in which they first appear.

    >>> seen = Distinct()
    >>> seen.add(np.array([5, 3, 5])).tolist(), seen.add(np.array([3, 8])).tolist()
    ([0, 1, 0], [1, 2])
    >>> seen.keys.tolist()
    [5, 3, 8]
    """

    def __init__(self) -> None:
        self._count, self._generation = 0, 1
        self._make(_SMALLEST)

    def _make(self, slots: int) -> None:
        self._slots = np.zeros(slots, np.uint64)  # the generation above, the key's position below
        self._keys = np.empty(slots // 2, np.int64)

    def __len__(self) -> int:
        return self._count

    @property
    def keys(self) -> NDArray[np.int64]:
        """The distinct keys so far; what is returned is valid until more are added."""
        return self._keys[: self._count]

    def add(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The position of each id, of a flat array, among all distinct keys so far."""
        positions, done = np.empty(len(ids), np.int64), 0
        while True:
            done, self._count = _add(self._slots, self._keys, self._count, self._generation, ids, positions, done)
            if done == len(ids):
                return positions
            self._grow()

    def _grow(self) -> None:
        keys = self.keys
        self._make(4 * len(self._slots))
        _add(self._slots, self._keys, 0, self._generation, keys, np.empty(len(keys), np.int64), 0)

    def clear(self) -> None:
        """Forget all keys, in no time."""
        self._count, self._generation = 0, self._generation + 1
        if self._generation >> 32:
            self._slots[:], self._generation = 0, 1


class Sum:
    """Gradients of several contributions, (n, dim) each, summed by key.

    >>> total, one = Sum(1), np.ones(2, np.uint8)
    >>> total.add(np.array([4, 9]), np.array([[1.0], [2.0]], np.float32), one, weight=1.0)
    >>> total.add(np.array([9, 2]), np.array([[3.0], [5.0]], np.float32), one, weight=2.0)
    >>> [array.tolist() for array in total.take()]
    [[4, 9, 2], [[1.0], [8.0], [10.0]], [1, 1, 1]]
    """

    def __init__(self, dim: int) -> None:
        self._distinct = Distinct()
        self._gradients = np.empty((0, dim), np.float32)
        self._touched = np.empty(0, np.uint8)

    def add(
        self, keys: NDArray[np.int64], gradients: NDArray[np.float32], touched: NDArray[np.uint8], weight: float
    ) -> None:
        """Add `weight` times the gradient of each touched key. Both operations round."""
        before = len(self._distinct)
        positions = self._distinct.add(keys)
        after = len(self._distinct)
        if after > len(self._touched):
            self._gradients.resize((2 * after, gradients.shape[1]), refcheck=False)
            self._touched.resize(2 * after, refcheck=False)
        self._touched[before:after] = 0
        add_at(self._gradients, self._touched, positions, gradients, touched, weight)

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint8]]:
        """The keys in the order of their first appearance, their sums and whether any was touched. Then there are none."""
        count = len(self._distinct)
        taken = self._distinct.keys.copy(), self._gradients[:count].copy(), self._touched[:count].copy()
        self._distinct.clear()
        return taken


def add_at(
    sums: NDArray[np.float32],
    summed: NDArray[np.uint8],
    positions: NDArray[np.int64],
    gradients: NDArray[np.float32],
    touched: NDArray[np.uint8] | None = None,
    weight: float = 1.0,
) -> None:
    """Add `weight` times the gradients that are `touched`, (n, dim), to the sums at their positions.

    The first at each is put there, which `summed` says.

    >>> sums, summed = np.full((2, 1), 7.0, np.float32), np.zeros(2, np.uint8)
    >>> add_at(sums, summed, np.array([1, 1]), np.array([[2.0], [3.0]], np.float32))
    >>> sums.tolist(), summed.tolist()
    ([[7.0], [5.0]], [0, 1])
    """
    every = np.ones(len(positions), np.uint8) if touched is None else touched
    _add_at(sums.reshape(-1), summed, positions, gradients.reshape(-1), every, np.float32(weight), sums.shape[1])


@compiled
def _add(slots, keys, count, generation, ids, positions, done):
    """Write the positions of the ids from `done` on; until where, and how many keys there are. It stops at full `keys`."""
    last = slots.size - 1
    for i in range(done, ids.size):
        if i + _AHEAD < ids.size:
            prefetch(slots, np.int64(mixed(ids[i + _AHEAD])) & last)
        slot = np.int64(mixed(ids[i])) & last
        while True:
            one = slots[slot]
            if np.int64(one >> _U32) != generation:
                if count == keys.size:
                    return i, count
                slots[slot] = (np.uint64(generation) << _U32) | np.uint64(count)
                keys[count] = ids[i]
                positions[i] = count
                count += 1
                break
            position = np.int64(one & LOW)
            if keys[position] == ids[i]:
                positions[i] = position
                break
            slot = (slot + 1) & last
    return ids.size, count


@compiled
def _add_at(sums, summed, positions, gradients, touched, weight, dim):
    """Add weighted gradients, flat, to the sums at their positions; the first of a key is put there."""
    for i in range(positions.size):
        if touched[i] == 0:
            continue
        position = positions[i]
        start, begin = position * dim, i * dim
        if summed[position] == 0:
            for column in range(dim):
                sums[start + column] = weight * gradients[begin + column]
            summed[position] = 1
        else:
            for column in range(dim):
                sums[start + column] += weight * gradients[begin + column]
