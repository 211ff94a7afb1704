"""How a row is stepped: the rules of `spec`, compiled.

Each takes a row's values and state where they lie, and its gradient. Whole lines of sixteen come first, then what is left.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.compiled import inlined
from plesio.kernels.intrinsics import fused
from plesio.kernels.lanes import LANES, fill, fma, load, root, store, total
from plesio.tables.spec import RowAdagrad, RowOptimizer, RowSGD

SGD, ADAGRAD, ADAGRAD_BY_ELEMENT, ADAM, ADAM_BY_TABLE = range(5)
LR, EPS, FRESH, FRESH_SQUARE = range(4)
"""What the numbers of a rule are, in their order: float32."""
BIAS_MAX = 1 << 22
"""Steps of a row after which RowAdam's correction stays as it is then, should it still matter."""
_ONE, _ZERO = np.float32(1), np.float32(0)


def rule_of(optimizer: RowOptimizer) -> tuple[int, NDArray[np.float32], NDArray[np.float32]]:
    """What the kernels need of a rule: its kind, its numbers, and RowAdam's rate after each number of steps."""
    given, bias = np.zeros(4, np.float32), np.zeros(1, np.float32)
    given[LR] = optimizer.lr
    if isinstance(optimizer, RowSGD):
        return SGD, given, bias
    given[EPS] = optimizer.eps
    if isinstance(optimizer, RowAdagrad):
        return ADAGRAD_BY_ELEMENT if optimizer.by_element else ADAGRAD, given, bias
    one, two = optimizer.betas
    given[FRESH], given[FRESH_SQUARE] = 1 - one, 1 - two
    return ADAM_BY_TABLE if optimizer.by_table else ADAM, given, _rates(optimizer.lr, one, two)


def _rates(lr: float, one: float, two: float) -> NDArray[np.float32]:
    """RowAdam's rate after so many steps: until float32 no longer tells it from `lr`."""
    slowest = max(one, two)
    count = BIAS_MAX if slowest > 0.999995 else int(-25 / math.log2(max(slowest, 0.5))) + 2
    steps = np.arange(1, min(count, BIAS_MAX))
    return np.append(np.float32(0), lr * np.sqrt(1 - two**steps) / (1 - one**steps)).astype(np.float32)


@inlined
def sgd(values, start, gradients, begin, dim, numbers):
    lr = numbers[LR]
    whole = dim - dim % LANES
    for column in range(0, whole, LANES):
        gradient = load(gradients, begin + column)
        store(values, start + column, fma(fill(-lr), gradient, load(values, start + column)))  # torch fuses here, too
    for column in range(whole, dim):
        values[start + column] = fused(-lr, gradients[begin + column], values[start + column])


@inlined
def adagrad(values, start, gradients, begin, dim, numbers):
    sums, rest = fill(_ZERO), _ZERO
    whole = dim - dim % LANES
    for column in range(0, whole, LANES):
        gradient = load(gradients, begin + column)
        sums = sums + gradient * gradient
    for column in range(whole, dim):
        gradient = gradients[begin + column]
        rest += gradient * gradient
    squares = values[start + dim] + (total(sums) + rest) / np.float32(dim)
    values[start + dim] = squares
    step = numbers[LR] / (np.float32(math.sqrt(squares)) + numbers[EPS])
    for column in range(0, whole, LANES):
        change = fill(step) * load(gradients, begin + column)
        store(values, start + column, load(values, start + column) - change)
    for column in range(whole, dim):
        values[start + column] -= step * gradients[begin + column]


@inlined
def adagrad_by_element(values, start, gradients, begin, dim, numbers):
    lr, eps, sums = numbers[LR], numbers[EPS], start + dim
    whole = dim - dim % LANES
    for column in range(0, whole, LANES):
        gradient = load(gradients, begin + column)
        squares = load(values, sums + column) + gradient * gradient
        store(values, sums + column, squares)
        change = gradient / (root(squares) + fill(eps))
        store(values, start + column, fma(fill(-lr), change, load(values, start + column)))  # torch fuses here, too
    for column in range(whole, dim):
        gradient = gradients[begin + column]
        squares = values[sums + column] + gradient * gradient
        values[sums + column] = squares
        change = gradient / (np.float32(math.sqrt(squares)) + eps)
        values[start + column] = fused(-lr, change, values[start + column])


@inlined
def counted(values, counter):
    """Which step of this row it is."""
    values[counter] += _ONE
    return np.int64(values[counter])


@inlined
def adam(values, start, gradients, begin, dim, numbers, bias, count):
    keep, fresh, eps = numbers[FRESH], numbers[FRESH_SQUARE], numbers[EPS]
    first, second = start + dim, start + 2 * dim
    step = bias[min(count, bias.size - 1)]
    whole = dim - dim % LANES
    for column in range(0, whole, LANES):
        gradient = load(gradients, begin + column)
        mean, square = load(values, first + column), load(values, second + column)
        mean = (gradient - mean) * fill(keep) + mean
        square = (gradient * gradient - square) * fill(fresh) + square
        store(values, first + column, mean)
        store(values, second + column, square)
        change = fill(step) * (mean / (root(square) + fill(eps)))
        store(values, start + column, load(values, start + column) - change)
    for column in range(whole, dim):
        gradient = gradients[begin + column]
        mean, square = values[first + column], values[second + column]
        mean = (gradient - mean) * keep + mean
        square = (gradient * gradient - square) * fresh + square
        values[first + column], values[second + column] = mean, square
        values[start + column] -= step * (mean / (np.float32(math.sqrt(square)) + eps))
