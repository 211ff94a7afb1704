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
"""In place of an error memory."""
FIRST, SECOND, THIRD = 20, 10, 0
"""By how much to shift a magnitude's 31 bits to count them 11, 10 and 10 at a time."""


@njit(cache=True, nogil=True)
def _whole_numbers(start, now, held, first, count, most, block, bits, whole, inverse_scale):
    """The numbers of one block as whole ones; the scale."""
    keeps = held.size > 0
    for place in range(count):
        block[place] = start[first + place] - now[first + place]
    if keeps:
        for place in range(count):
            block[place] += held[first + place]
    largest = np.int32(0)
    for place in range(count):
        largest = max(largest, bits[place] & MAGNITUDE)
    inverse_scale.view(np.int32)[0] = largest
    top = inverse_scale[0]
    inverse = most / top if top > 0 else np.float32(0.0)
    scale = top / most
    if not inverse < np.inf:
        inverse, scale = np.float32(0.0), np.float32(0.0)
    for place in range(count):
        whole[place] = np.rint(block[place] * inverse)
    if keeps:
        for place in range(count):
            held[first + place] = block[place] - whole[place] * scale
    return scale


@njit(cache=True, nogil=True)
def pack_int8(start, now, held, scales, codes):
    block, whole, one = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(1, np.float32)
    bits = block.view(np.int32)
    for number in range(scales.size):
        first = number * BLOCK
        count = min(BLOCK, start.size - first)
        scales[number] = _whole_numbers(start, now, held, first, count, np.float32(127.0), block, bits, whole, one)
        for place in range(count):
            codes[first + place] = np.uint8(np.int32(whole[place]))


@njit(cache=True, nogil=True)
def pack_int4(start, now, held, scales, codes):
    block, whole, one = np.empty(BLOCK, np.float32), np.zeros(BLOCK, np.float32), np.empty(1, np.float32)
    bits = block.view(np.int32)
    for number in range(scales.size):
        first = number * BLOCK
        count = min(BLOCK, start.size - first)
        scales[number] = _whole_numbers(start, now, held, first, count, np.float32(7.0), block, bits, whole, one)
        if count % 2:
            whole[count] = np.float32(0.0)
        for pair in range((count + 1) // 2):
            low, high = np.int32(whole[2 * pair]) + 8, np.int32(whole[2 * pair + 1]) + 8
            codes[first // 2 + pair] = np.uint8(low | high << 4)


@njit(cache=True, nogil=True)
def add_int8(scales, codes, out, share):
    signed = codes.view(np.int8)
    for number in range(scales.size):
        first = number * BLOCK
        factor = scales[number] * np.float32(share)
        for place in range(first, min(first + BLOCK, out.size)):
            out[place] += np.float32(signed[place]) * factor


@njit(cache=True, nogil=True)
def add_int4(scales, codes, out, share):
    for number in range(scales.size):
        first = number * BLOCK
        factor = scales[number] * np.float32(share)
        count = min(BLOCK, out.size - first)
        for pair in range(count // 2):
            code = codes[first // 2 + pair]
            out[first + 2 * pair] += np.float32(np.int32(code & 15) - 8) * factor
            out[first + 2 * pair + 1] += np.float32(np.int32(code >> 4) - 8) * factor
        if count % 2:
            out[first + count - 1] += np.float32(np.int32(codes[first // 2 + count // 2] & 15) - 8) * factor


@njit(cache=True, nogil=True)
def _bin_of(counts, wanted):
    """From above: the bin in which the `wanted`-th lies, and which of that bin it is."""
    number = counts.size - 1
    while counts[number] < wanted:
        wanted -= counts[number]
        number -= 1
    return number, wanted


@njit(cache=True, nogil=True)
def pack_largest(delta, places, values):
    bits = delta.view(np.int32)
    wanted, known = values.size, np.int32(0)
    shift_before = 31
    for shift in (FIRST, SECOND, THIRD):
        counts = np.zeros(1 << (shift_before - shift), np.int64)
        mask = np.int32((1 << (shift_before - shift)) - 1)
        for place in range(bits.size):
            size = bits[place] & MAGNITUDE
            if shift_before == 31 or size >> shift_before == known:
                counts[size >> shift & mask] += 1
        number, wanted = _bin_of(counts, wanted)
        known = np.int32(known << (shift_before - shift) | number)
        shift_before = shift
    found = 0
    for place in range(bits.size):  # `known` is the limit, of which `wanted` are kept
        size = bits[place] & MAGNITUDE
        if size > known or (size == known and wanted > 0):
            if size == known:
                wanted -= 1
            places[found], values[found] = place, delta[place]
            found += 1
