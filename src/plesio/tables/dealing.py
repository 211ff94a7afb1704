"""Which of several servers holds a key's row: keys fall into 256 parts by their hash, and each server holds some of these."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled
from plesio.tables.index import mixed
from plesio.tables.links import ALIKE, WAITS, KeptRows

PARTS = 256
"""Servers, at most."""
_U56 = np.uint64(56)


def servers_of(keys: NDArray[np.int64], servers: int) -> NDArray[np.uint8]:
    """The number of each key's server, of so many `servers`.

    >>> servers_of(np.arange(8), 2).tolist()
    [1, 1, 1, 0, 0, 0, 1, 0]
    """
    whose = np.empty(len(keys), np.uint8)
    _deal(keys, servers, whose)
    return whose


def deal(keys: NDArray[np.int64], servers: int) -> list[NDArray[np.int64]]:
    """The positions of each server's keys, in their order."""
    whose = servers_of(keys, servers)
    ends = np.cumsum(np.bincount(whose, minlength=servers))[:-1]
    return np.split(np.argsort(whose, kind="stable"), ends)


def share_of(kept: KeptRows, server: int, servers: int) -> KeptRows:
    """What one server holds of a table's rows."""
    if servers == 1:
        return kept
    own = {name: servers_of(kept[name], servers) == server for name in ("keys", "candidates") if name in kept}
    return {
        name: array if name in ALIKE else array[own["candidates" if name in WAITS else "keys"]]
        for name, array in kept.items()
    }


@compiled
def _deal(keys, servers, whose):
    for i in range(keys.size):
        whose[i] = (np.int64(mixed(keys[i]) >> _U56) * servers) // 256
