"""One step of negative sampling: a few input rows against a few output rows, as a small matrix product.

With hidden rows h (words of a window), output rows y (the word itself, label 1, and words drawn at random, label 0):

    g[h, y] = lr · (label(y) − σ(h · y)),    h += Σ_y g[h, y] · y,    y += Σ_h g[h, y] · h

where all right-hand sides are of before the step (but a word drawn twice moves twice, from where it then is). word2vec.c
has one hidden row at a time; with several, every output row is read and written once for all of them (HogBatch: Ji et
al., "Parallelizing word2vec in shared and distributed memory", 2016).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled, inlined
from plesio.kernels.intrinsics import prefetch
from plesio.kernels.lanes import LANES, fill, load, store, total

PAIR = 2  # output rows are processed two at a time, which fits the registers; of an odd number one comes twice
REACH = 6  # the sigmoid's table covers scores from -6 to 6, as in word2vec.c; beyond it is 0 or 1
CELLS = 1000
SAMPLED = 32  # the loss is computed for one step in this many

_ZERO, _ONE = np.float32(0), np.float32(1)
_LOWEST, _HIGHEST, _CELLS_PER_UNIT = np.float32(-REACH), np.float32(REACH), np.float32(CELLS / (2 * REACH))


class Model(NamedTuple):
    """A table of rows for words as contexts and one for words as targets, flat; a row is `width` numbers."""

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]
    width: int


class Steps(NamedTuple):
    """Step s is the words contexts[starts[s]:starts[s + 1]] against the `count` words targets[s * count:].

    Of these, the first is right and the others are drawn; where that is an odd number, the first is there again at the end,
    and not moved for it.
    """

    contexts: NDArray[np.uint32]
    starts: NDArray[np.int64]
    targets: NDArray[np.uint32]


class Scratch(NamedTuple):
    """Buffers of one step: hidden rows, their changes, a number for each pair."""

    hidden: NDArray[np.float32]
    errors: NDArray[np.float32]
    slopes: NDArray[np.float32]


@inlined
def _score(hidden, rows, outputs, targets, first, count, width, scores):
    """Write the product of every hidden row with every target row into `scores`, `count` to a hidden row."""
    for row in range(rows):
        for t in range(0, count, PAIR):
            a, b = targets[first + t] * width, targets[first + t + 1] * width
            to_a = to_b = fill(_ZERO)
            for d in range(0, width, LANES):
                h = load(hidden, row * width + d)
                to_a = to_a + h * load(outputs, a + d)
                to_b = to_b + h * load(outputs, b + d)
            scores[row * count + t] = total(to_a)
            scores[row * count + t + 1] = total(to_b)


@inlined
def _slope(scores, rows, count, drawn, lr, sigmoid, watch):
    """Turn scores into lr · (label − σ(score)): target 0 is the word itself, `drawn` are random, one more does nothing.

    If watched, the loss too: the sum of −log σ(±score).
    """
    loss = 0.0
    for row in range(rows):
        for t in range(count):
            value = scores[row * count + t]
            if value >= _HIGHEST:
                probability = _ONE
            elif value > _LOWEST:
                probability = sigmoid[np.uint32((value - _LOWEST) * _CELLS_PER_UNIT)]
            else:  # a NaN comes here
                probability = _ZERO
            label = _ONE if t == 0 else _ZERO
            scores[row * count + t] = lr * (label - probability) if t <= drawn else _ZERO
            if watch and t <= drawn:
                loss += math.log1p(math.exp(np.float64(-value if t == 0 else value)))
    return loss


@inlined
def _move(hidden, errors, rows, outputs, targets, first, count, width, slopes):
    """Move the target rows by Σ_h g · h, and write Σ_y g · y of the rows before that into `errors`."""
    for t in range(0, count, PAIR):
        a, b = targets[first + t] * width, targets[first + t + 1] * width
        for d in range(0, width, LANES):
            y_a, y_b = load(outputs, a + d), load(outputs, b + d)
            to_a = to_b = fill(_ZERO)
            for row in range(rows):
                g_a, g_b = fill(slopes[row * count + t]), fill(slopes[row * count + t + 1])
                at = row * width + d
                error = fill(_ZERO) if t == 0 else load(errors, at)
                store(errors, at, error + g_a * y_a + g_b * y_b)
                h = load(hidden, at)
                to_a = to_a + g_a * h
                to_b = to_b + g_b * h
            store(outputs, a + d, load(outputs, a + d) + to_a)  # read again: a and b may be the same
            store(outputs, b + d, load(outputs, b + d) + to_b)


@compiled
def learn(model, steps, number, count, drawn, pooled, lr, sigmoid, scratch):
    """Do the first `number` of `steps`: the loss of a sample of (context, word) pairs, and how many these are.

    If `pooled`, the hidden row is the mean of the contexts (CBOW), and each of them is moved as it is.
    The rows of the next step are asked for while this one is worked on: it never costs, there is so much to do to a row
    (.94 to .98 of the time without, medians of eight pairs, with vocabularies from a few hundred words to 71,000).
    """
    inputs, outputs, width = model
    contexts, starts, targets = steps
    hidden, errors, slopes = scratch
    loss, pairs = 0.0, 0
    for step in range(number):
        begin, end, first = starts[step], starts[step + 1], step * count
        if step + 1 < number:
            for t in range(first + count, first + count + drawn + 1):
                for d in range(0, width, LANES):
                    prefetch(outputs, targets[t] * width + d)
            for d in range(0, width, LANES):
                prefetch(inputs, contexts[starts[step + 2] - 1] * width + d)
        rows = 1 if pooled else end - begin
        share = fill(_ONE / np.float32(end - begin))
        for d in range(0, width, LANES):
            mean = fill(_ZERO)
            for row in range(end - begin):
                x = load(inputs, contexts[begin + row] * width + d)
                if pooled:
                    mean = mean + share * x
                else:
                    store(hidden, row * width + d, x)
            if pooled:
                store(hidden, d, mean)
        watch = step % SAMPLED == 0
        _score(hidden, rows, outputs, targets, first, count, width, slopes)
        loss += _slope(slopes, rows, count, drawn, lr, sigmoid, watch)
        _move(hidden, errors, rows, outputs, targets, first, count, width, slopes)
        if watch:
            pairs += rows
        for row in range(end - begin):
            x = contexts[begin + row] * width
            e = 0 if pooled else row * width
            for d in range(0, width, LANES):
                store(inputs, x + d, load(inputs, x + d) + load(errors, e + d))
    return loss, pairs
