"""The index of a table: from a key to the number of its row, by extendible hashing.

A key's hash gives a tag of 32 bits. The tag's low bits choose an entry of the directory, and that a segment of 1,024 slots. In
it a key lies where a product of its tag says, or behind. A slot is a tag and a row's number. The key itself is in the row,
which whoever looks up a key reads anyway. A segment that is 7/8 full is split by one more bit of the tag: that takes
microseconds however large the table is, and no row moves.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from plesio.kernels.compiled import inlined
from plesio.kernels.intrinsics import ordered, prefetch
from plesio.kernels.lanes import LANES
from plesio.tables.reserved import NUMBERS, SLOTS
from plesio.tables.spec import VERSIONS

BITS, SEGMENTS, ROWS, WIDTH, FREE, FREED, CURSOR, KEPT, CHANGED = range(NUMBERS)
"""What `numbers` holds: bits of a tag that the directory uses, segments, rows, words of a row. Of the rows
the first that is free, plus 1, and how many are; where the next sweep begins. Of a fold how many rows were kept, and whether the
index changed (`undo`)."""
KEY, VERSION = 2, 3
"""Words from a row's end: that many before it begin its key and its version."""
FULL = SLOTS * 7 // 8
_FIRST, _SECOND, _STEP = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)
_U30, _U27, _U31, _U24, _U32, _U22, _U1 = (np.uint64(one) for one in (30, 27, 31, 24, 32, 22, 1))
LOW = np.uint64(0xFFFFFFFF)
_SCATTER = np.uint64(0x9E3779B1)
_NONE = np.uint64(0)
NOBODYS = np.uint32(VERSIONS)
"""The version of a free row."""


@inlined
def mixed(number):
    """The 64 bits of splitmix64 (Steele, Lea and Flood, 2014) for a number of 64 bits."""
    bits = np.uint64(number) + _STEP
    bits = (bits ^ (bits >> _U30)) * _FIRST
    bits = (bits ^ (bits >> _U27)) * _SECOND
    return bits ^ (bits >> _U31)


@inlined
def tag_of(key):
    """Bits 24 to 55 of a key's hash. The top 8 are its part, by which keys are dealt to servers."""
    return (mixed(key) >> _U24) & LOW


@inlined
def home_of(tag):
    """The slot of its segment where the search for a tag begins."""
    return np.int64(((tag * _SCATTER) & LOW) >> _U22)


@inlined
def segment_of(at, tag):
    """The segment of a tag."""
    return np.int64(at.directory[np.int64(tag) & ((1 << at.numbers[BITS]) - 1)])


@inlined
def key_of(at, row):
    """The key that a row belongs to."""
    return at.keys[((row + 1) * at.numbers[WIDTH] - KEY) >> 1]


@inlined
def is_free(at, row):
    """Whether a row is nobody's."""
    return at.words[(row + 1) * at.numbers[WIDTH] - VERSION] == NOBODYS


@inlined
def find(at, key, sure=True):
    """The row of a key; -1 if it has none. Not `sure`: the first with its tag, which is the key's in all but a few cases."""
    tag = tag_of(key)
    base, slot = segment_of(at, tag) * SLOTS, home_of(tag)
    while True:
        one = at.slots[base + slot]
        if one == _NONE:
            return np.int64(-1)
        if one >> _U32 == tag:
            row = np.int64(one & LOW) - 1
            if not sure or key_of(at, row) == key:
                return row
        slot = (slot + 1) & (SLOTS - 1)


@inlined
def fetch_slot(at, key):
    """Ask for the line where the search for a key begins."""
    tag = tag_of(key)
    prefetch(at.slots, segment_of(at, tag) * SLOTS + home_of(tag))


@inlined
def fetch_row(at, row):
    """Ask for the lines of a row."""
    first = row * at.numbers[WIDTH]
    for line in range(first // LANES, (first + at.numbers[WIDTH] - 1) // LANES + 1):  # rows begin at a page
        prefetch(at.values, line * LANES)


@inlined
def insert(at, key, row):
    """Let a key that has none have this row; False if the index is full."""
    _changes(at)
    tag = tag_of(key)
    segment = segment_of(at, tag)
    while at.segments[2 * segment + 1] >= FULL:
        if not _split(at, segment):
            return False
        segment = segment_of(at, tag)
    _put(at, segment, tag, (tag << _U32) | np.uint64(row + 1))
    return True


@inlined
def remove(at, key, row):
    """Empty the slot of a key that has this row. Those behind it move up, so that no search ends before them."""
    _changes(at)
    tag = tag_of(key)
    segment = segment_of(at, tag)
    base, hole = segment * SLOTS, home_of(tag)
    wanted = (tag << _U32) | np.uint64(row + 1)
    while at.slots[base + hole] != wanted:
        hole = (hole + 1) & (SLOTS - 1)
    slot = hole
    while True:
        slot = (slot + 1) & (SLOTS - 1)
        one = at.slots[base + slot]
        if one == _NONE:
            break
        if (slot - home_of(one >> _U32)) & (SLOTS - 1) >= (slot - hole) & (SLOTS - 1):
            at.slots[base + hole] = one
            hole = slot
    at.slots[base + hole] = _NONE
    at.segments[2 * segment + 1] -= 1


@inlined
def _changes(at):
    at.numbers[CHANGED] = 1
    ordered()


@inlined
def _put(at, segment, tag, one):
    base, slot = segment * SLOTS, home_of(tag)
    while at.slots[base + slot] != _NONE:
        slot = (slot + 1) & (SLOTS - 1)
    at.slots[base + slot] = one
    at.segments[2 * segment + 1] += 1


@inlined
def _split(at, segment):
    """Move the keys with one more bit set into a segment of their own; False where bits or segments have run out."""
    bit, new = at.segments[2 * segment], at.numbers[SEGMENTS]
    if bit == at.numbers[BITS]:
        if 2 << bit > at.directory.size or bit == 32:
            return False
        for entry in range(1 << bit):
            at.directory[(1 << bit) + entry] = at.directory[entry]
        at.numbers[BITS] += 1
    if 2 * new >= at.segments.size:
        return False
    base = segment * SLOTS
    for slot in range(SLOTS):
        at.spare[slot] = at.slots[base + slot]
        at.slots[base + slot] = _NONE
    at.numbers[SEGMENTS] += 1
    at.segments[2 * segment], at.segments[2 * new] = bit + 1, bit + 1
    at.segments[2 * segment + 1] = 0
    shared = -1
    for slot in range(SLOTS):
        one = at.spare[slot]
        if one != _NONE:
            tag = one >> _U32
            shared = np.int64(tag) & ((1 << bit) - 1)
            _put(at, new if (tag >> np.uint64(bit)) & _U1 else segment, tag, one)
    for entry in range(shared + (1 << bit), 1 << at.numbers[BITS], 2 << bit):
        at.directory[entry] = new
    return True
