"""A fold in one pass over memory, compiled.

A pass goes line by line of sixteen numbers. Each is weighted, damped, stepped and looked ahead from while it is in registers, so
the memory of the model is read and written once.

Every operation rounds as torch's does, in the same order; `fma` stands where torch fuses a multiplication with an addition. So a
pass gives the bits that `sgd`, `adam`, `corrections` and `look_ahead` give together: which of them folded makes no difference.
Arrays are given by their addresses: to hand over a dozen of NumPy's would take longer than to fold a small model.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
from __future__ import annotations

import numpy as np
from numba import njit

from plesio.kernels.intrinsics import inner, ordered
from plesio.kernels.lanes import (
    LANES,
    LINE_BYTES,
    fill,
    fma,
    larger,
    line_at,
    magnitude,
    put_at,
    put_number_at,
    root,
    total,
)  # fmt: skip

STRETCH = 1 << 16
"""Elements whose gaps are summed together; threads share a pass by whole stretches."""
WEIGHT, OUT, FIRST, SECOND, LARGEST, TOTAL, THEN, AHEAD, SLOTS = range(9)
"""What the addresses are of, in their order: `FIRST` and `SECOND` are the moments, `TOTAL` is the sum of all workers' first ones;
the slots of a round follow each other. 0: there is none."""
KEPT = range(OUT, THEN)
"""What may change where it is. `OUT` does if the weights before lie there, too."""
SUMS = len(KEPT)
UNDO_BYTES = LINE_BYTES + 2 * LINE_BYTES * (SUMS + 1)
"""What a part of a pass keeps of the line that it is at, so that whoever goes on from it can put that line back: its number,
then its place among two, by turns, with the line of each that changes, and the sums so far. The number is stored last."""
EVEN, CLOSENESS, LOOK, DECAY, MOMENTUM, KEEP, RATE = range(7)
"""What the numbers of a pass of SGD are, in their order; the first four are those of every pass."""
SHRINK, LERP, SQUARE, FRESH, ROOT, EPS, STEP, NESTEROV = range(4, 12)
"""Those of Adam behind them."""


@inner
def kept_at(at, which):
    """Where line `at` of one of `KEPT`, or its sums, are kept."""
    return LANES + ((at & LANES) // LANES * (SUMS + 1) + which) * LANES


@inner
def keep_line(undo, addresses, at, sums):
    """Line `at` is about to change."""
    for which in range(SUMS):
        if addresses[OUT + which] != 0:
            put_at(undo, kept_at(at, which), line_at(addresses[OUT + which], at))
    put_at(undo, kept_at(at, SUMS), sums)
    ordered()
    put_number_at(undo, at)
    ordered()


@njit(cache=True, nogil=True, error_model="numpy")
def begin_part(undo, addresses, at):
    """Nothing of this part is done: its first line is kept."""
    keep_line(undo, addresses, at, fill(np.float32(0.0)))


@njit(cache=True, nogil=True, error_model="numpy")
def put_back(undo, addresses, at):
    """What lay in line `at` when it was begun lies there again."""
    for which in range(SUMS):
        if addresses[OUT + which] != 0:
            put_at(addresses[OUT + which], at, line_at(undo, kept_at(at, which)))


@njit(cache=True, nogil=True, error_model="numpy")
def mean(addresses, numbers, shares, gaps, undo, begin, end):
    """`plesio.tensors.mean.weighted_into` on the elements from `begin`, the start of a stretch, to `end`; of several parts."""
    for at in range(begin, end, LANES):
        gradient = line_at(addresses[SLOTS], at) * fill(shares[0])
        for slot in range(1, shares.size):
            gradient = fma(line_at(addresses[SLOTS + slot], at), fill(shares[slot]), gradient)
        if numbers[EVEN] != 1:
            gradient = gradient * fill(numbers[EVEN])
        put_at(addresses[OUT], at, gradient)


@njit(cache=True, nogil=True, error_model="numpy")
def sgd(first, nesterov, addresses, numbers, shares, gaps, undo, begin, end):
    """`plesio.tensors.sgd` on the elements from `begin`, the start of a stretch, to `end`; `first`: the momentum is started.

    `undo`: where it keeps what it is about to change, if that is to be kept. It may go on from there, at `begin`.
    """
    out, weights, moments, all_moments = addresses[OUT], addresses[WEIGHT], addresses[FIRST], addresses[TOTAL]
    before, ahead, even, decay = addresses[THEN], addresses[AHEAD], numbers[EVEN], numbers[DECAY]
    closeness, look, momentum = numbers[CLOSENESS], numbers[LOOK], fill(numbers[MOMENTUM])
    keep, rate, sums, one = fill(numbers[KEEP]), fill(numbers[RATE]), fill(np.float32(0.0)), fill(np.float32(1.0))
    if undo != 0:
        sums = line_at(undo, kept_at(begin, SUMS))
    for at in range(begin, end, LANES):
        if undo != 0:
            keep_line(undo, addresses, at, sums)
        weight, gradient = line_at(weights, at), line_at(addresses[SLOTS], at)
        if shares.size > 1:
            gradient = gradient * fill(shares[0])
            for slot in range(1, shares.size):
                gradient = fma(line_at(addresses[SLOTS + slot], at), fill(shares[slot]), gradient)
            if even != 1:
                gradient = gradient * fill(even)
        if before != 0:
            gap = magnitude(weight - line_at(before, at))
            sums = sums + gap
            if closeness > 0:
                gradient = gradient / (gap * fill(closeness) + one)
            if (at + LANES) % STRETCH == 0 or at + LANES >= end:
                gaps[at // STRETCH], sums = total(sums), fill(np.float32(0.0))
        if decay != 0:
            gradient = fma(weight, fill(decay), gradient)
        if moments != 0:
            old = line_at(moments, at)
            new = gradient if first else fma(gradient, keep, old * momentum)
            put_at(addresses[FIRST], at, new)
            gradient = fma(new, momentum, gradient) if nesterov else new
            if all_moments != 0:
                put_at(addresses[TOTAL], at, line_at(all_moments, at) - old + new)
        weight = fma(gradient, rate, weight)
        put_at(out, at, weight)
        if ahead != 0:
            put_at(ahead, at, fma(line_at(addresses[TOTAL], at), fill(look), weight) if look != 0 else weight)


@njit(cache=True, nogil=True, error_model="numpy")
def adam(nesterov, addresses, numbers, shares, gaps, undo, begin, end):
    """`plesio.tensors.adam` likewise; `nesterov`: NAdam."""
    out, weights, means, all_means = addresses[OUT], addresses[WEIGHT], addresses[FIRST], addresses[TOTAL]
    squares, largest, before, ahead = addresses[SECOND], addresses[LARGEST], addresses[THEN], addresses[AHEAD]
    even, decay, closeness, look = numbers[EVEN], numbers[DECAY], numbers[CLOSENESS], numbers[LOOK]
    keep, fresh, step, shrink = fill(numbers[SQUARE]), fill(numbers[FRESH]), fill(numbers[STEP]), fill(numbers[SHRINK])
    correction, eps, early, shrinks = (
        fill(numbers[ROOT]),
        fill(numbers[EPS]),
        fill(numbers[NESTEROV]),
        numbers[SHRINK] != 1,
    )
    near = abs(numbers[LERP]) < np.float32(0.5)  # torch's lerp begins at the nearer end
    lerp = fill(numbers[LERP] if near else numbers[LERP] - np.float32(1.0))
    sums, one = fill(np.float32(0.0)), fill(np.float32(1.0))
    if undo != 0:
        sums = line_at(undo, kept_at(begin, SUMS))
    for at in range(begin, end, LANES):
        if undo != 0:
            keep_line(undo, addresses, at, sums)
        weight, gradient = line_at(weights, at), line_at(addresses[SLOTS], at)
        if shares.size > 1:
            gradient = gradient * fill(shares[0])
            for slot in range(1, shares.size):
                gradient = fma(line_at(addresses[SLOTS + slot], at), fill(shares[slot]), gradient)
            if even != 1:
                gradient = gradient * fill(even)
        if before != 0:
            gap = magnitude(weight - line_at(before, at))
            sums = sums + gap
            if closeness > 0:
                gradient = gradient / (gap * fill(closeness) + one)
            if (at + LANES) % STRETCH == 0 or at + LANES >= end:
                gaps[at // STRETCH], sums = total(sums), fill(np.float32(0.0))
        if decay != 0:
            gradient = fma(weight, fill(decay), gradient)
        old = line_at(means, at)
        mean = fma(lerp, gradient - old, old if near else gradient)
        put_at(addresses[FIRST], at, mean)
        if all_means != 0:
            put_at(addresses[TOTAL], at, line_at(all_means, at) - old + mean)
        square = fma(fresh * gradient, gradient, line_at(squares, at) * keep)
        put_at(addresses[SECOND], at, square)
        if largest != 0:
            square = larger(line_at(largest, at), square)
            put_at(addresses[LARGEST], at, square)
        divisor = (root(square * correction) if nesterov else root(square) * correction) + eps
        if shrinks:
            weight = weight * shrink
        if nesterov:
            weight = weight + early * gradient / divisor
        weight = weight + step * mean / divisor
        put_at(out, at, weight)
        if ahead != 0:
            put_at(ahead, at, weight + fill(look) * line_at(addresses[TOTAL], at) / divisor if look != 0 else weight)
