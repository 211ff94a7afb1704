"""The inner loops of matrix factorisation: one for ratings, one for pairs of a liked and another item.

A table is a flat float32 array with a row a user or an item: the factors, filled up with zeros to whole cache lines, then
a line that begins with the bias and the row's AdaGrad state. Threads share the tables and take chunks from `counter`.

AdaGrad by row (as in LIBMF: Chin, Zhuang, Juan and Lin, 2015) keeps one number a row, the sum of its mean squared
gradients, so a row that is seen often takes smaller steps. The state is shared like everything else: an update that
another thread overwrites is an update not counted.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import uintp
from numpy.typing import NDArray

from plesio.kernels.compiled import compiled, inlined
from plesio.kernels.intrinsics import fetch_add, prefetch
from plesio.kernels.lanes import LANES, fill, load, store, total

AHEAD = 8
"""How many ratings ahead rows are asked for, whatever the model's size. Where it fits the second-level cache that costs nothing
(MovieLens-100k with 8 to 128 factors: .93 to .99 of the time without, medians of twelve pairs; pairwise ranking 1.00 to 1.06);
where only the last level holds it, sweeps take .75 of the time (ML-10M's shape, 64 factors)."""
ATTEMPTS = 16  # draws after which a user who likes nearly all items is skipped
NOBODY = np.uint32(0xFFFFFFFF)

_TINY = np.float32(1e-12)  # for shares of 0
_ZERO, _ONE, _LINE, _MASK = np.uintp(0), np.uintp(1), np.uintp(LANES), np.uintp(AHEAD - 1)


class Work(NamedTuple):
    """What is to be done: the chunks `order[counter:stop]`, chunk k being the ratings bounds[k] to bounds[k + 1] - 1."""

    order: NDArray[np.uint32]
    stop: int
    counter: NDArray[np.int64]
    bounds: NDArray[np.int64]
    lrs: NDArray[np.float32]  # by chunk
    losses: NDArray[np.float64]  # by chunk, summed up


class Tables(NamedTuple):
    """The model: flat rows of `stride` numbers, of which the last line begins with the bias and the state."""

    users: NDArray[np.float32]
    items: NDArray[np.float32]
    stride: Any


class Step(NamedTuple):
    """What does not change from rating to rating."""

    penalty: Any
    share: Any  # of one coordinate in the mean of a row's squared gradients
    adagrad: bool
    biases: bool


class Rivals(NamedTuple):
    """Where items that a user has not seen are drawn from.

    A block's rivals are `items[first[block]:last[block]]`, so that in a grid they lie in the block's own columns.
    A user's seen items are `seen[starts[user]:starts[user + 1]]`, sorted.
    """

    items: NDArray[np.uint32]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    starts: NDArray[np.int64]
    seen: NDArray[np.uint32]
    key: Any


@compiled
def squared(work, tables, step, users, items, ratings, weights):
    """Squared error: sweep over the chunks that are left; how many ratings were done. Without weights (None) each weighs 1."""
    done = 0
    while True:
        turn = fetch_add(work.counter, 0, 1)
        if turn >= work.stop:
            return done
        chunk = work.order[turn]
        begin, end = uintp(work.bounds[chunk]), uintp(work.bounds[chunk + 1])
        lr, loss = work.lrs[chunk], 0.0
        for at in range(begin, end):
            ahead = min(at + uintp(AHEAD), end - _ONE)
            _ask(tables.users, uintp(users[ahead]) * tables.stride, tables.stride)
            _ask(tables.items, uintp(items[ahead]) * tables.stride, tables.stride)
            user, item = uintp(users[at]) * tables.stride, uintp(items[at]) * tables.stride
            steps = _steps(weights, at, _share(tables, step, lr, user, item))
            error = _rate(tables, step, lr, steps, user, item, ratings[at])
            loss += _weight(weights, at) * (error * error)
        work.losses[chunk] = loss
        done += end - begin


@inlined
def _weight(weights, at):
    if weights is None:  # known when this is compiled: multiplications by it are left out
        return np.float32(1)
    return weights[at]


@inlined
def _steps(weights, at, share):
    """How many steps the weight w of a rating is worth, where one takes the `share` c of the error away: about w, if c is small.

    But w times the step could go far beyond the aim. Of w steps that are made ever smaller, exp(-c w) of the error is left,
    so w counts as (1 - exp(-c w)) / (1 - exp(-c)), which is 1 for 1 (after Karampatziakis and Langford, 2011).
    """
    if weights is None:
        return np.float32(1)
    share = np.float64(share)
    return np.float32(math.expm1(-share * weights[at]) / math.expm1(-share))


@inlined
def _share(tables, step, lr, user, item):
    """The share of its error that a rating's step takes away, to first order."""
    users, items, head = tables.users, tables.items, tables.stride - _LINE
    user_squares = item_squares = fill(np.float32(0))
    for k in range(_ZERO, head, _LINE):
        p, q = load(users, user + k), load(items, item + k)
        user_squares, item_squares = user_squares + p * p, item_squares + q * q
    user_lr, item_lr = _row_lr(step, lr, users, user + head), _row_lr(step, lr, items, item + head)
    bias = np.float32(step.biases)
    return user_lr * (total(item_squares) + bias) + item_lr * (total(user_squares) + bias) + _TINY


@inlined
def _rate(tables, step, lr, steps, user, item, rating):
    """One rating: the error before the step, and the step."""
    user_rows, item_rows = tables.users, tables.items
    head = tables.stride - _LINE
    sums = fill(np.float32(0))
    for k in range(_ZERO, head, _LINE):
        sums = sums + load(user_rows, user + k) * load(item_rows, item + k)
    user_head, item_head = user + head, item + head
    user_bias, item_bias = user_rows[user_head], item_rows[item_head]
    error = rating - (user_bias + item_bias + total(sums))

    user_lr = _row_lr(step, lr * steps, user_rows, user_head)
    item_lr = _row_lr(step, lr * steps, item_rows, item_head)
    errors, penalty = fill(error), fill(step.penalty)
    user_lrs, item_lrs = fill(user_lr), fill(item_lr)
    user_squares = item_squares = fill(np.float32(0))
    for k in range(_ZERO, head, _LINE):
        p, q = load(user_rows, user + k), load(item_rows, item + k)
        to_p, to_q = errors * q - penalty * p, errors * p - penalty * q
        user_squares, item_squares = user_squares + to_p * to_p, item_squares + to_q * to_q
        store(user_rows, user + k, p + user_lrs * to_p)
        store(item_rows, item + k, q + item_lrs * to_q)
    _finish(step, user_rows, user_head, user_lr, steps, error, total(user_squares))
    _finish(step, item_rows, item_head, item_lr, steps, error, total(item_squares))
    return error


@compiled
def bpr(work, tables, step, users, items, weights, rivals, drawn):
    """Bayesian personalised ranking: sweep over the chunks that are left; how many pairs were done.

    `drawn` (uint32, at least `AHEAD` of them) is this thread's own.
    """
    done = 0
    while True:
        turn = fetch_add(work.counter, 0, 1)
        if turn >= work.stop:
            return done
        chunk = work.order[turn]
        begin, end = uintp(work.bounds[chunk]), uintp(work.bounds[chunk + 1])
        lr, loss = work.lrs[chunk], 0.0
        for at in range(begin, min(begin + uintp(AHEAD), end)):
            drawn[at & _MASK] = _draw(rivals, chunk, users[at], at)
        for at in range(begin, end):
            rival, ahead = drawn[at & _MASK], at + uintp(AHEAD)
            if ahead < end:
                next_rival = _draw(rivals, chunk, users[ahead], ahead)
                drawn[at & _MASK] = next_rival
                _ask(tables.users, uintp(users[ahead]) * tables.stride, tables.stride)
                _ask(tables.items, uintp(items[ahead]) * tables.stride, tables.stride)
                if next_rival != NOBODY:
                    _ask(tables.items, uintp(next_rival) * tables.stride, tables.stride)
            if rival != NOBODY:
                user, item = uintp(users[at]) * tables.stride, uintp(items[at]) * tables.stride
                other = uintp(rival) * tables.stride
                share = _share(tables, step, lr, user, item) + _share(tables, step, lr, user, other)
                steps = _steps(
                    weights, at, share / np.float32(4)
                )  # the doubt falls by at most 1/4 of what the lead grows
                loss += _weight(weights, at) * _prefer(tables, step, lr, steps, user, item, other)
        work.losses[chunk] = loss
        done += end - begin


@inlined
def _prefer(tables, step, lr, steps, user, item, rival):
    """One pair: -ln(chance that `user` prefers `item` to `rival`) before the step, and the step."""
    user_rows, item_rows = tables.users, tables.items
    head = tables.stride - _LINE
    sums = fill(np.float32(0))
    for k in range(_ZERO, head, _LINE):
        sums = sums + load(user_rows, user + k) * (load(item_rows, item + k) - load(item_rows, rival + k))
    user_head, item_head, rival_head = user + head, item + head, rival + head
    lead = np.float64(item_rows[item_head] - item_rows[rival_head] + total(sums))
    odds = math.exp(-lead)
    doubt = np.float32(1.0 - 1.0 / (1.0 + odds))

    user_lr = _row_lr(step, lr * steps, user_rows, user_head)
    item_lr = _row_lr(step, lr * steps, item_rows, item_head)
    rival_lr = _row_lr(step, lr * steps, item_rows, rival_head)
    doubts, penalty = fill(doubt), fill(step.penalty)
    user_lrs, item_lrs, rival_lrs = fill(user_lr), fill(item_lr), fill(rival_lr)
    user_squares = item_squares = rival_squares = fill(np.float32(0))
    for k in range(_ZERO, head, _LINE):
        p, q, r = load(user_rows, user + k), load(item_rows, item + k), load(item_rows, rival + k)
        pull = doubts * p
        to_p, to_q, to_r = doubts * (q - r) - penalty * p, pull - penalty * q, penalty * r + pull
        user_squares = user_squares + to_p * to_p
        item_squares, rival_squares = item_squares + to_q * to_q, rival_squares + to_r * to_r
        store(user_rows, user + k, p + user_lrs * to_p)
        store(item_rows, item + k, q + item_lrs * to_q)
        store(item_rows, rival + k, r - rival_lrs * to_r)
    if step.adagrad:  # the bias of a user says nothing about which item is preferred
        user_rows[user_head + _ONE] += total(user_squares) * step.share * steps
    _finish(step, item_rows, item_head, item_lr, steps, doubt, total(item_squares))
    _finish(step, item_rows, rival_head, rival_lr, steps, -doubt, total(rival_squares))
    return math.log1p(odds) if lead > -30 else -lead


@inlined
def _row_lr(step, lr, rows, head):
    if step.adagrad:
        return lr / np.sqrt(rows[head + _ONE])
    return lr


@inlined
def _finish(step, rows, head, lr, steps, error, squares):
    """The step of the bias, and the squared gradients into the state, as often as so many steps would."""
    if step.biases:
        bias = rows[head]
        gradient = error - step.penalty * bias
        squares += gradient * gradient
        rows[head] = bias + lr * gradient
    if step.adagrad:
        rows[head + _ONE] += squares * step.share * steps


@inlined
def _ask(rows, row, stride):
    for k in range(_ZERO, stride, _LINE):
        prefetch(rows, row + k)


@inlined
def _draw(rivals, block, user, at):
    """An item that `user` has not seen, drawn for the rating `at`; NOBODY if none is found soon."""
    first = rivals.first[block]
    count = np.uint64(rivals.last[block] - first)
    seed = rivals.key + np.uint64(at) * np.uint64(ATTEMPTS)
    for attempt in range(ATTEMPTS):
        number = mix(seed + np.uint64(attempt)) >> np.uint64(32)
        item = rivals.items[uintp(first) + uintp((number * count) >> np.uint64(32))]
        if not _has_seen(rivals, user, item):
            return item
    return NOBODY


@inlined
def _has_seen(rivals, user, item):
    low, high = uintp(rivals.starts[user]), uintp(rivals.starts[uintp(user) + _ONE])
    end = high
    while low < high:
        middle = (low + high) >> _ONE
        if rivals.seen[middle] < item:
            low = middle + _ONE
        else:
            high = middle
    return low < end and rivals.seen[low] == item


@inlined
def mix(number):
    """Random bits of a number (the finaliser of splitmix64): stateless, so every thread draws the same."""
    number = (number + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))
