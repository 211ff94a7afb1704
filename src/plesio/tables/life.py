"""Keys before they have a row, and rows that have died: counted, given back and used again, compiled.

A row dies by its version and the clock alone. What is done about it here only gives memory back: whoever reads a row asks
`is_dead` first. A free row has a version that no row can have, and in its first word the next free one.

Keys that wait for a row are candidates. They lie in a table of their own, of the same kind: a row is their count.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from plesio.kernels.compiled import compiled, inlined
from plesio.tables.index import (
    CURSOR,
    FREE,
    FREED,
    KEY,
    NOBODYS,
    ROWS,
    VERSION,
    WIDTH,
    fetch_slot,
    find,
    insert,
    is_free,
    key_of,
    remove,
)
from plesio.tables.undo import keep

FOREVER = 1 << 62
"""The life of rows that never die."""
COUNT_WORDS = 4
"""Words of a candidate: count, version, key."""
_AHEAD = 32
_BIT = np.uint64(1)


@inlined
def is_dead(at, row, clock, life):
    """Whether a row, which may be free, did not step for longer than `life`."""
    version = at.words[(row + 1) * at.numbers[WIDTH] - VERSION]
    return version != NOBODYS and clock - np.int64(version) > life


@inlined
def next_row(at):
    """The row that the next key gets."""
    return at.numbers[FREE] - 1 if at.numbers[FREE] > 0 else at.numbers[ROWS]


@inlined
def take(at, row, key, version):
    """Let `key` have `row`, the next; whether numbers may lie in it: another had it before, or in a fold that was taken back."""
    width = at.numbers[WIDTH]
    used = row < at.numbers[ROWS]
    if used:
        keep(at, row)
        at.numbers[FREE] = np.int64(at.words[row * width])
        at.numbers[FREED] -= 1
    else:
        at.numbers[ROWS] += 1
    at.words[(row + 1) * width - VERSION] = np.uint32(version)
    at.keys[((row + 1) * width - KEY) >> 1] = key
    return used or at.kept.size > 0


@inlined
def evict(at, row):
    """Take a row out of the index; it is free."""
    keep(at, row)
    remove(at, key_of(at, row), row)
    width, others = at.numbers[WIDTH], ~(_BIT << np.uint64(row & 63))
    at.marks[2 * (row >> 6)] &= others
    at.marks[2 * (row >> 6) + 1] &= others
    at.words[row * width] = np.uint32(at.numbers[FREE])
    at.words[(row + 1) * width - VERSION] = NOBODYS
    at.numbers[FREE] = row + 1
    at.numbers[FREED] += 1


@compiled
def sweep(at, clock, life, rows):
    """Evict those that are dead among the next `rows` rows; how many."""
    left, evicted, row = min(rows, at.numbers[ROWS]), 0, at.numbers[CURSOR]
    while left > 0:
        if row >= at.numbers[ROWS]:
            row = 0
        end = min(row + min(left, _AHEAD), at.numbers[ROWS])
        for one in range(row, end):
            if is_dead(at, one, clock, life):
                fetch_slot(at, key_of(at, one))
        for one in range(row, end):
            if is_dead(at, one, clock, life):
                evict(at, one)
                evicted += 1
        left -= end - row
        row = end
    at.numbers[CURSOR] = row
    return evicted


@compiled
def living(at, clock, life):
    """How many rows live."""
    count = 0
    for row in range(at.numbers[ROWS]):
        count += not (is_free(at, row) or is_dead(at, row, clock, life))
    return count


@compiled
def count(at, keys, which, clock, life, times, admitted):
    """Count each key at `which` once more, and write into `admitted` whether it came so many times; it is no candidate then.

    How many of them there was room for.
    """
    width = at.numbers[WIDTH]
    limit = at.words.size // width
    for i in range(which.size):
        if i + _AHEAD < which.size:
            fetch_slot(at, keys[which[i + _AHEAD]])
        key = keys[which[i]]
        row, came = find(at, key), np.int64(1)
        if row >= 0 and not is_dead(at, row, clock - 1, life):  # as a row at its own step
            came += np.int64(at.words[row * width])
        admitted[i] = came >= times
        if admitted[i]:
            if row >= 0:
                evict(at, row)
            continue
        if row < 0:
            row = next_row(at)
            if row >= limit or not insert(at, key, row):
                return i
            take(at, row, key, clock)
        else:
            keep(at, row)
        at.words[row * width] = np.uint32(came)
        at.words[(row + 1) * width - VERSION] = np.uint32(clock)
    return which.size
