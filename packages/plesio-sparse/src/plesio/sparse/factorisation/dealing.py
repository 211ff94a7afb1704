"""Ratings dealt into parts, each part in random order: three passes, all of them by as many threads as there are.

The first counts, the second brings each rating to its part, and the third shuffles each part where it lies, in the cache:
that is much faster than shuffling through all of memory. A thread has a share of the ratings and, within each part, the
places after those of the threads before it: so the result is the same for any number of threads.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import uintp
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled
from plesio.kernels.intrinsics import fetch_add
from plesio.sparse.factorisation.kernels import mix
from plesio.sparse.threads import pool, shares

_ONE = np.uintp(1)


class Triples(NamedTuple):
    """Users, items and ratings: three arrays of equal length."""

    users: NDArray[np.uint32]
    items: NDArray[np.uint32]
    ratings: NDArray[np.float32]


class Parts(NamedTuple):
    """A rating belongs to the part of its user plus that of its item: two arrays with a number below 2^16 a row."""

    users: NDArray[np.uint16]
    items: NDArray[np.uint16]


def deal(given: Triples, parts: Parts, count: int, key: np.uint64, threads: int) -> tuple[Triples, NDArray[np.int64]]:
    """The ratings part by part, and where each of the `count` parts begins and ends; `key` is what they are shuffled by."""
    cuts = shares(len(given.users), threads)
    crew = pool(len(cuts))
    places = np.zeros((len(cuts), count), np.uint64)
    crew.run(lambda thread: _count(given, parts, *cuts[thread], places[thread]))
    ends = np.cumsum(places.T).astype(np.uint64)  # by part, and in each by thread
    edges = np.concatenate([np.zeros(1, np.uint64), ends[len(cuts) - 1 :: len(cuts)]])
    places = np.ascontiguousarray(ends.reshape(count, len(cuts)).T) - places
    dealt = Triples(np.empty_like(given.users), np.empty_like(given.items), np.empty_like(given.ratings))
    crew.run(lambda thread: _bring(given, parts, *cuts[thread], places[thread], dealt))
    counter = np.zeros(1, np.int64)
    crew.run(lambda thread: _shuffle(dealt, edges, counter, key))
    return dealt, edges.astype(np.int64)


@compiled
def _count(given, parts, first, stop, counts):
    for at in range(uintp(first), uintp(stop)):
        counts[uintp(parts.users[given.users[at]]) + uintp(parts.items[given.items[at]])] += _ONE


@compiled
def _bring(given, parts, first, stop, places, dealt):
    for at in range(uintp(first), uintp(stop)):
        user, item = given.users[at], given.items[at]
        part = uintp(parts.users[user]) + uintp(parts.items[item])
        to = places[part]
        places[part] = to + _ONE
        dealt.users[to], dealt.items[to], dealt.ratings[to] = user, item, given.ratings[at]


@compiled
def _shuffle(dealt, edges, counter, key):
    """Fisher and Yates, in the parts that are left."""
    while True:
        part = fetch_add(counter, 0, 1)
        if part >= len(edges) - 1:
            return
        first, left = edges[part], edges[part + 1] - edges[part]
        while left > _ONE:
            other = first + ((mix(key + first + left) >> np.uint64(32)) * left >> np.uint64(32))
            left -= _ONE
            at = first + left
            dealt.users[at], dealt.users[other] = dealt.users[other], dealt.users[at]
            dealt.items[at], dealt.items[other] = dealt.items[other], dealt.items[at]
            dealt.ratings[at], dealt.ratings[other] = dealt.ratings[other], dealt.ratings[at]
