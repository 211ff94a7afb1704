"""The codecs' inner loops, compiled. Without `fastmath`, so that each gives the bits that torch gives.

The largest magnitude of a block is found among the bits of its numbers, which vectorises: without their signs, floats are in the
order of their bits.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import numpy as np
from numba import njit

BLOCK = 256
MAGNITUDE = np.int32(0x7FFFFFFF)
NOTHING = np.empty(0, np.float32)
"""In place of an error memory, or of zeros in `now`."""


@njit(cache=True, nogil=True)
def _whole_numbers(start, now, held, most, block, bits, whole, one):
    """The numbers of one block as whole ones; the scale."""
    count = start.size
    if held.size and now.size:
        for place in range(count):
            block[place] = start[place] - now[place] + held[place]
    elif held.size:
        for place in range(count):
            block[place] = start[place] + held[place]
    elif now.size:
        for place in range(count):
            block[place] = start[place] - now[place]
    else:
        block[:count] = start
    largest = np.int32(0)
    for place in range(count):
        largest = max(largest, bits[place] & MAGNITUDE)
    one.view(np.int32)[0] = largest
    top = one[0]
    inverse = most / top if top > 0 else np.float32(0.0)
    scale = top / most
    if not inverse < np.inf:
        inverse, scale = np.float32(0.0), np.float32(0.0)
    for place in range(count):
        whole[place] = np.int32(np.rint(block[place] * inverse))
    if held.size:
        for place in range(count):
            held[place] = block[place] - np.float32(whole[place]) * scale
    return scale


@njit(cache=True, nogil=True)
def pack_int8(start, now, held, scales, codes):
    block, whole, one = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32), np.empty(1, np.float32)
    bits, most = block.view(np.int32), np.float32(127.0)
    for number in range(scales.size):
        here = slice(number * BLOCK, min((number + 1) * BLOCK, start.size))
        scales[number] = _whole_numbers(start[here], now[here], held[here], most, block, bits, whole, one)
        out = codes[here]
        for place in range(out.size):
            out[place] = np.uint8(whole[place])


@njit(cache=True, nogil=True)
def pack_int4(start, now, held, scales, codes):
    block, whole, one = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.int32), np.empty(1, np.float32)
    bits, most = block.view(np.int32), np.float32(7.0)
    for number in range(scales.size):
        here = slice(number * BLOCK, min((number + 1) * BLOCK, start.size))
        scales[number] = _whole_numbers(start[here], now[here], held[here], most, block, bits, whole, one)
        whole[here.stop - here.start :] = 0
        out = codes[number * BLOCK // 2 : (here.stop + 1) // 2]
        for pair in range(out.size):
            out[pair] = np.uint8((whole[2 * pair] + 8) | (whole[2 * pair + 1] + 8) << 4)


@njit(cache=True, nogil=True)
def add_int8(scales, codes, out, share):
    signed = codes.view(np.int8)
    for number in range(scales.size):
        here = slice(number * BLOCK, min((number + 1) * BLOCK, out.size))
        factor, target, source = scales[number] * np.float32(share), out[here], signed[here]
        for place in range(target.size):
            target[place] += np.float32(source[place]) * factor


@njit(cache=True, nogil=True)
def add_int4(scales, codes, out, share):
    for number in range(scales.size):
        here = slice(number * BLOCK, min((number + 1) * BLOCK, out.size))
        factor, target = scales[number] * np.float32(share), out[here]
        source = codes[number * BLOCK // 2 : (here.stop + 1) // 2]
        for pair in range(target.size // 2):
            target[2 * pair] += np.float32(np.int32(source[pair] & 15) - 8) * factor
            target[2 * pair + 1] += np.float32(np.int32(source[pair] >> 4) - 8) * factor
        if target.size % 2:
            target[target.size - 1] += np.float32(np.int32(source[source.size - 1] & 15) - 8) * factor


@njit(cache=True, nogil=True)
def _bin_of(counts, wanted):
    """From above: the bin in which the `wanted`-th lies, and which of that bin it is."""
    number = counts.size - 1
    while counts[number] < wanted:
        wanted -= counts[number]
        number -= 1
    return np.int32(number), wanted


@njit(cache=True, nogil=True)
def pack_largest(start, now, delta, keeps, places, values):
    """Moves the largest of `delta` (after `start - now` was added, or put there) to `values`. The limit is found by counting
    magnitudes by their upper 11 bits, and those of the bin in which it lies by the others."""
    bits, counts = delta.view(np.int32), np.zeros((2, 2048), np.int64)
    if not keeps:
        delta[:] = 0.0
    if now.size:
        for place in range(delta.size):
            delta[place] += start[place] - now[place]
    else:
        for place in range(delta.size):
            delta[place] += start[place]
    for place in range(delta.size):  # two tables: to count the same bin twice in a row would wait
        counts[place & 1, (bits[place] & MAGNITUDE) >> 20] += 1
    total = counts[0] + counts[1]
    first, wanted = _bin_of(total, values.size)
    among, found = np.empty(total[first], np.int32), 0
    for place in range(delta.size):
        if (bits[place] & MAGNITUDE) >> 20 == first:
            among[found] = bits[place] & 0xFFFFF
            found += 1
    upper, lower = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
    for rest in among:
        upper[rest >> 10] += 1
    second, wanted = _bin_of(upper, wanted)
    for rest in among:
        if rest >> 10 == second:
            lower[rest & 1023] += 1
    third, wanted = _bin_of(lower, wanted)
    limit, found = first << 20 | second << 10 | third, 0
    for place in range(delta.size):
        size = bits[place] & MAGNITUDE
        if size >= limit and (size > limit or wanted > 0):
            if size == limit:
                wanted -= 1
            places[found], values[found] = place, delta[place]
            found += 1
    for place in places:
        delta[place] = 0.0
