"""The rows of a table: looked up, born and stepped, compiled.

Memory is asked for ahead of its use, so that some thirty rows are on their way at a time; a row is read and written once. A
row's operations come in one fixed order, each rounded, so that neither where it lies nor what lies beside it changes a bit.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np

from plesio.kernels.compiled import compiled, inlined
from plesio.kernels.lanes import LANES, load, store
from plesio.tables.index import ROWS, VERSION, WIDTH, fetch_row, fetch_slot, find, insert, is_free, key_of, mixed
from plesio.tables.life import FOREVER, evict, is_dead, next_row, take
from plesio.tables.rules import (
    ADAGRAD,
    ADAGRAD_BY_ELEMENT,
    ADAM,
    SGD,
    adagrad,
    adagrad_by_element,
    adam,
    counted,
    sgd,
)
from plesio.tables.undo import keep

TWICE, OUTSIDE, FINE = -2, -1, 0
NEW = -2
"""A row that was born in this fold is written as NEW - row."""
_BLOCK = 32
_AHEAD = 32
_ONE, _ZERO, _HALF_WORD = np.float32(1), np.float32(0), np.float32(2.0**-23)
_U40, _U8, _LOW24 = np.uint64(40), np.uint64(8), np.uint64(0xFFFFFF)
_STEP, _ODD, _U32 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93), np.uint64(32)
_BIT, _EMPTY = np.uint64(1), np.uint64(0)


@inlined
def first_values(out, start, dim, seed, key, scale):
    """Write a new row's values: uniform in [-scale, scale), two columns from 48 of 64 bits."""
    bits = mixed(key ^ seed)
    for column in range(0, dim, 2):
        drawn = mixed(np.int64(bits))
        bits += _STEP
        out[start + column] = (np.float32(drawn >> _U40) * _HALF_WORD - _ONE) * scale
        if column + 1 < dim:
            out[start + column + 1] = (np.float32((drawn >> _U8) & _LOW24) * _HALF_WORD - _ONE) * scale


@inlined
def _copy(source, begin, out, start, dim):
    whole = dim - dim % LANES
    for column in range(0, whole, LANES):
        store(out, start + column, load(source, begin + column))
    for column in range(whole, dim):
        out[start + column] = source[begin + column]


@compiled
def pull(at, dim, seed, scale, clock, life, zeros, keys, out, places):
    """Write each key's values into `out` (flat) and its row into `places`, -1 where it has none that lives; nothing is stored.

    `zeros`: these are the values of a key without a row.
    """
    mortal = life < FOREVER
    for begin in range(0, keys.size, _BLOCK):
        end = min(begin + _BLOCK, keys.size)
        for i in range(begin, end):
            fetch_slot(at, keys[i])
        for i in range(begin, end):
            places[i] = row = find(at, keys[i], False)
            if row >= 0:
                fetch_row(at, row)
        for i in range(begin, end):
            row = places[i]
            if row >= 0 and key_of(at, row) != keys[i]:
                places[i] = row = find(at, keys[i])
            if mortal and row >= 0 and is_dead(at, row, clock, life):
                places[i] = row = -1
            if row >= 0:
                _copy(at.values, row * at.numbers[WIDTH], out, i * dim, dim)
            elif zeros:
                for column in range(i * dim, (i + 1) * dim):
                    out[column] = _ZERO
            else:
                first_values(out, i * dim, dim, seed, keys[i], scale)


@compiled
def locate(at, clock, life, keys, places, touched, careful, rows):
    """Write the row of each touched key into `rows`, all -1, where it has one, and mark it; the code of what is wrong, and where.

    `careful`: a place may have become another key's and is looked up again then; that reads each row once more. The dead
    are evicted; how many is returned, too.
    """
    evicted = 0
    for i in range(keys.size):
        if careful and i + _AHEAD < keys.size and 0 <= places[i + _AHEAD] < at.numbers[ROWS]:
            fetch_row(at, places[i + _AHEAD])
        if touched[i] == 0:
            continue
        row = places[i]
        if row < -1 or (row >= at.numbers[ROWS] and not careful):
            return OUTSIDE, i, evicted
        if row < 0 or (careful and (row >= at.numbers[ROWS] or key_of(at, row) != keys[i] or is_free(at, row))):
            row = find(at, keys[i])
        if row >= 0 and careful and is_dead(at, row, clock, life):
            evict(at, row)
            evicted += 1
            row = -1
        if row >= 0:
            word, bit = 2 * (row >> 6), _BIT << np.uint64(row & 63)
            if at.marks[word] & bit:
                return TWICE, i, evicted
            at.marks[word] |= bit
            rows[i] = row
    return FINE, 0, evicted


@compiled
def unmark(at, rows):
    """Take back what `locate` marked."""
    for i in range(rows.size):
        if rows[i] >= 0:
            at.marks[2 * (rows[i] >> 6)] = _EMPTY


@compiled
def bear(at, dim, seed, scale, initial, version, keys, which, rows):
    """Give rows to the keys at `which`, NEW - their numbers into `rows`; how many there was room for."""
    width = at.numbers[WIDTH]
    limit = at.values.size // width
    for born in range(which.size):
        key, row = keys[which[born]], next_row(at)
        if row >= limit or not insert(at, key, row):
            return born
        start = row * width
        if take(at, row, key, version) or initial != _ZERO:
            for column in range(start + dim, start + width - VERSION):
                at.values[column] = initial
        first_values(at.values, start, dim, seed, key, scale)
        rows[which[born]] = NEW - row
    return which.size


@compiled
def restore(at, dim, state, keys, values, states, versions):
    """Give further rows to all these keys, in their order; the first that cannot have one, or their number."""
    width, first = at.numbers[WIDTH], at.numbers[ROWS]
    for i in range(keys.size):
        row = first + i
        if find(at, keys[i]) >= 0 or not insert(at, keys[i], row):
            return i
        start = row * width
        _copy(values, i * dim, at.values, start, dim)
        _copy(states, i * state, at.values, start + dim, state)
        take(at, row, keys[i], versions[i])
    return keys.size


@compiled
def fold(at, kind, dim, numbers, bias, keys, gradients, rows, version, seen):
    """Step the rows (-1: none) by their gradients (flat). Of those that are not new count what was stale.

    A row that is another key's stays as it is, and is counted too.
    """
    width, stepped, stale, staleness, wrong = at.numbers[WIDTH], 0, 0, 0, 0
    for i in range(rows.size):
        if i + _AHEAD < rows.size and rows[i + _AHEAD] >= 0:
            fetch_row(at, rows[i + _AHEAD])
        row = rows[i]
        new = row < 0
        if new:
            if row > NEW:
                continue
            row = NEW - row
        mark, bit = 2 * (row >> 6), _BIT << np.uint64(row & 63)
        at.marks[mark] &= ~bit
        if key_of(at, row) != keys[i]:
            wrong += 1
            continue
        if not new:
            keep(at, row)
        at.marks[mark + 1] |= bit
        start = row * width
        last = np.int64(at.words[start + width - VERSION])
        if not new and last > seen:
            stale += 1
            staleness += last - seen
        at.words[start + width - VERSION] = np.uint32(version)
        if kind == SGD:
            sgd(at.values, start, gradients, i * dim, dim, numbers)
        elif kind == ADAGRAD:
            adagrad(at.values, start, gradients, i * dim, dim, numbers)
        elif kind == ADAGRAD_BY_ELEMENT:
            adagrad_by_element(at.values, start, gradients, i * dim, dim, numbers)
        else:
            count = counted(at.values, start + 3 * dim) if kind == ADAM else version
            adam(at.values, start, gradients, i * dim, dim, numbers, bias, count)
        stepped += 1
    return stepped, stale, staleness, wrong


@inlined
def _hash(at, row, count):
    """64 bits of a key and the `count` numbers of its row, by their bits."""
    start = row * at.numbers[WIDTH]
    bits = mixed(key_of(at, row))
    for word in range(start, start + count):
        bits = (bits ^ np.uint64(at.words[word])) * _ODD
        bits ^= bits >> _U32
    return bits


@compiled
def checksum(at, clock, life, count):
    """The sum of the hashes of all rows that live."""
    result = _EMPTY
    for row in range(at.numbers[ROWS]):
        if not (is_free(at, row) or is_dead(at, row, clock, life)):
            result += _hash(at, row, count)
    return result


@compiled
def take_checksum(at, clock, life, count, forget):
    """The sum of the hashes of rows folded since they were forgotten last, as they are now; not of those that died."""
    result = _EMPTY
    for word in range((at.numbers[ROWS] + 63) >> 6):
        marks = at.marks[2 * word + 1]
        if forget:
            at.marks[2 * word + 1] = _EMPTY
        row = 64 * word
        while marks != _EMPTY:
            if marks & _BIT and not is_dead(at, row, clock, life):
                result += _hash(at, row, count)
            marks >>= _BIT
            row += 1
    return result
