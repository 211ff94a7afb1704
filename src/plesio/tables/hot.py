"""Which keys of a table many contributions pull: estimated from about 1 of `EVERY`, in little time and memory."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled
from plesio.tables.index import mixed

EVERY, SLOTS, MOST = 32, 1 << 17, 10
SHARE, LEAST = 0.1, 12
"""A key is hot if at least this share of the contributions pulled it, and so many of those that are looked at."""


def is_looked_at(worker: int, number: int) -> bool:
    """Whether a contribution is: each server looks at the same ones, and no worker's have a period."""
    return number > 0 and (hash((worker, number)) >> 32) % EVERY == 0


def hottest(found: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The first `MOST` by their share; several servers have different keys."""
    return tuple(sorted(found, key=lambda one: (-one[1], one[0]))[:MOST])


class HotKeys:
    """Of one table. A slot counts the key that comes to it as often as all others: majority vote (Boyer and Moore 1981). Where
    15,000 keys come at once, these are the keys that 1 contribution of 9 has, or more."""

    def __init__(self) -> None:
        self._keys, (self._hits, self._others) = np.zeros(SLOTS, np.int64), np.zeros((2, SLOTS), np.int32)
        self._known, self._next = np.empty(0, np.int64), LEAST

    def add(self, keys: NDArray[np.int64]) -> None:
        """The keys of one contribution, each once."""
        _add(self._keys, self._hits, self._others, keys)

    def shares(self, looked_at: int, exact: bool) -> tuple[tuple[int, float], ...]:
        """The hot keys, with the share of so many contributions that had them. `exact`: all slots are searched again."""
        if exact or looked_at >= self._next:
            self._known, self._next = np.argpartition(self._hits, -MOST)[-MOST:], looked_at + looked_at // 4
        found = zip(self._keys[self._known].tolist(), self._hits[self._known].tolist(), strict=True)
        return hottest((key, hits / looked_at) for key, hits in found if hits >= max(LEAST, SHARE * looked_at))


@compiled
def _add(holders, hits, others, keys):
    for i in range(keys.size):
        slot = np.int64(mixed(keys[i])) & (holders.size - 1)
        if holders[slot] == keys[i]:
            hits[slot] += 1
        elif others[slot] < hits[slot]:
            others[slot] += 1
        else:
            holders[slot], hits[slot], others[slot] = keys[i], 1, 0
