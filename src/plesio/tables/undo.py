"""Taking back a fold that was broken off, compiled: where a table lies in memory that outlives its process.

Before a row changes it is copied as a whole, and then counted. So whoever finds the table puts back as many rows as were counted.

| what a fold changes                  | kept                                      | taken back                              |
| ------------------------------------ | ----------------------------------------- | --------------------------------------- |
| rows that there were, free ones, too | each time, before it changes              | the last copy first                     |
| rows that there were not             | nothing                                   | they are no rows                        |
| numbers                              | as they were when the fold began          | all but those of the index              |
| the index                            | whether it changed: rows hold their keys  | built anew, if it did                   |
| marks of the fold                    | nothing                                   | cleared                                 |
| marks for the checksum               | nothing                                   | they stay: the same rows step again     |
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from plesio.kernels.compiled import compiled, inlined
from plesio.kernels.intrinsics import ordered
from plesio.tables.index import (
    BITS,
    CHANGED,
    CURSOR,
    KEPT,
    ROWS,
    SEGMENTS,
    WIDTH,
    fetch_slot,
    insert,
    is_free,
    key_of,
)
from plesio.tables.reserved import NUMBERS, SLOTS, Arrays

_AHEAD = 32
_EMPTY = np.uint64(0)


def begin(at: Arrays) -> None:
    """A fold begins; that before it can no longer be taken back."""
    at.numbers[KEPT] = at.numbers[CHANGED] = 0
    at.numbers[NUMBERS:] = at.numbers[:NUMBERS]


@inlined
def keep(at, row):
    """Copy a row that is about to change, if its table survives."""
    if at.kept.size == 0:
        return
    width, count = at.numbers[WIDTH], at.numbers[KEPT]
    place, start = count * (1 + width), row * width
    at.kept[place] = np.uint32(row)
    for word in range(width):
        at.kept[place + 1 + word] = at.words[start + word]
    ordered()
    at.numbers[KEPT] = count + 1
    ordered()


@compiled
def take_back(at):
    """Have all as it was when the fold began. Broken off, it can be done again."""
    for word in range((max(at.numbers[ROWS], at.numbers[NUMBERS + ROWS]) + 63) >> 6):
        at.marks[2 * word] = _EMPTY
    width = at.numbers[WIDTH]
    for one in range(at.numbers[KEPT] - 1, -1, -1):
        place = one * (1 + width)
        start = np.int64(at.kept[place]) * width
        for word in range(width):
            at.words[start + word] = at.kept[place + 1 + word]
    for which in range(ROWS, CURSOR + 1):
        at.numbers[which] = at.numbers[NUMBERS + which]
    if at.numbers[CHANGED]:
        _build_index(at)


@inlined
def _build_index(at):
    """Empty the index, and let each row's key have its row. Entries of the directory are written before they are read."""
    used = min(at.numbers[SEGMENTS] + 1, at.segments.size >> 1)  # the last may just have been begun
    for slot in range(used * SLOTS):
        at.slots[slot] = _EMPTY
    for one in range(2 * used):
        at.segments[one] = 0
    ordered()
    at.numbers[BITS], at.numbers[SEGMENTS] = 0, 1
    for row in range(at.numbers[ROWS]):
        if row + _AHEAD < at.numbers[ROWS]:
            fetch_slot(at, key_of(at, row + _AHEAD))
        if not is_free(at, row):
            insert(at, key_of(at, row), row)
