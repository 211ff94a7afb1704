"""The sweep over the rows: the one loop in which all the time goes.

A thread takes the next chunk of rows from a shared counter and does for each row r of it, with its slope g and rate η,

    w ← (1 − ηα)·w − η·g·x_r

without a lock, without an atomic operation, without looking whether another thread is at the same weight. Three
things make it fast: the decay is not done to w but to one number (w = scale·v; the scale at each chunk's beginning is
in the plan, so threads need not agree on it); nothing is written where the loss is flat (`FLAT`); and the dot product runs in
four sums, which the processor adds at once (their order is fixed, so a plain loop gets the same bits).

`sweep` is that; `sweep_with_memory` does the same for what has to remember something for each weight: L1 (the
cumulative penalty of Tsuruoka, Tsujii and Ananiadou, 2009) and averaging (Xu, 2011, in the form that touches only the
weights of the row).
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from plesio.kernels.compiled import compiled, inlined
from plesio.kernels.intrinsics import fetch_add, prefetch
from plesio.sparse.linear.losses import slope_and_loss

FLAT = 1e-2
"""Where a slope is below FLAT·√alpha the row teaches nothing: a logistic loss is flat far from its margin, if never quite.

The objective at its minimum is off by at most flat²/(2·alpha)·|x|² = 5e-5·|x|²: alpha is how much it curves at least.
"""
AHEAD = np.uint64(2)
"""How many rows ahead weights are asked for, when they are prefetched."""

HOT_SLOTS = 2048  # how many hot weights a thread can have copies of: 8 KiB, to be exchanged after each chunk
_MERGED_AT_ONCE = np.uint64(2048)  # numbers: a few replicas of them fit the cache nearest to a core
_SLOT = np.uint64(HOT_SLOTS - 1)
_CARRIES, _HALF = np.uint64(2**32 - 1), np.uint64(32)
_ONE, _TWO, _THREE, _FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


class Data(NamedTuple):
    """The rows, their targets and weights. Place p of the order of work is the row rows[p]."""

    indptr: Any
    indices: Any
    values: Any
    targets: Any  # float64: ±1, or the number to be predicted
    importance: Any  # float64: sample weight times class weight
    rows: Any  # uint32


class Plan(NamedTuple):
    """The schedule: all arrays but `bounds` and `order` have one entry per turn; a turn is a chunk."""

    order: Any  # uint32: the chunk whose turn it is
    bounds: Any  # int64: chunk c is the places bounds[c] to bounds[c + 1] - 1
    rates: Any  # float64: the learning rate of the turn
    scales: Any  # float64: the scale at its beginning
    shrinks: Any  # float64: the factor of the scale for each row
    truncations: Any  # float64: L1 penalty that a weight must have paid at its beginning
    clocks: Any  # float64: the sum of the scales of all averaged rows at its beginning; negative: not averaged yet
    losses: Any  # float64, written: the loss of its rows before each was learnt from
    steps: Any  # float64, written: the change of the intercept by its rows
    intercepts: Any  # float64, written: the sum of the intercepts after each of its rows


class Model(NamedTuple):
    """The weights a thread works on: its own replica or everybody's."""

    weights: Any  # float32, as v = w / scale
    intercept: Any  # float64, one entry
    paid: Any  # float32: the L1 penalty a weight has paid so far (with the sign of what was added to it)
    lag: Any  # float32: for the average


class Hot(NamedTuple):
    """The copies a thread has of the hot weights, in slots: feature j can have slot j mod HOT_SLOTS only."""

    keys: Any  # uint32: the feature that has the slot; of an empty slot one that cannot have it
    mine: Any  # where this thread's copies begin
    tail: Any  # the offset added to the index of the other weights
    shared: Any  # float32: the hot weights all threads agree on
    seen: Any  # float32: their values when this thread last looked


class Rules(NamedTuple):
    """The numbers that are the same for all rows."""

    loss: Any
    epsilon: Any
    intercept_rate: Any  # times the learning rate is that of the intercept; 0: there is none
    truncation: Any  # times the learning rate is the L1 penalty of a row; 0: there is none
    flat: Any  # a slope no steeper is taken for zero
    prefetched: Any  # whether the weights are
    held: Any  # the planner moves the intercept after the turn (for rows done in any order)


@inlined
def slots(hot):
    """(keys, mine, tail) of hot weights; no keys where there are none."""
    if hot is None:
        return None, np.uint64(0), np.uint64(0)
    return hot.keys, hot.mine, hot.tail


@inlined
def place(index, keys, mine, tail):
    """Where the weight of feature `index` is."""
    if keys is None:
        return index
    slot = index & _SLOT
    # No branch: half of the non-zeros hit, and which half cannot be foreseen. The carry of 2^32 − 1 tells zero from the rest.
    missed = (np.uint64(keys[slot] ^ index) + _CARRIES) >> _HALF
    copied = mine + slot
    return copied + missed * (tail + index - copied)


@inlined
def dot(indices, values, weights, begin, end, keys, mine, tail):
    """The sum of values·weights of a row, in four running sums: numbers 0, 4, 8, ... go to the first, and so on."""
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    fours = begin + ((end - begin) & ~_THREE)
    for i in range(begin, fours, _FOUR):
        a += weights[place(indices[i], keys, mine, tail)] * values[i]
        b += weights[place(indices[i + _ONE], keys, mine, tail)] * values[i + _ONE]
        c += weights[place(indices[i + _TWO], keys, mine, tail)] * values[i + _TWO]
        d += weights[place(indices[i + _THREE], keys, mine, tail)] * values[i + _THREE]
    for i in range(fours, end):
        a += weights[place(indices[i], keys, mine, tail)] * values[i]
    return (a + b) + (c + d)


@inlined
def add(indices, values, weights, begin, end, factor, keys, mine, tail):
    """weights += factor·values of a row, four at a time: left alone, LLVM does up to seven apart, one after the other."""
    fours = begin + ((end - begin) & ~_THREE)
    for i in range(begin, fours, _FOUR):
        weights[place(indices[i], keys, mine, tail)] += factor * values[i]
        weights[place(indices[i + _ONE], keys, mine, tail)] += factor * values[i + _ONE]
        weights[place(indices[i + _TWO], keys, mine, tail)] += factor * values[i + _TWO]
        weights[place(indices[i + _THREE], keys, mine, tail)] += factor * values[i + _THREE]
    for i in range(fours, end):
        weights[place(indices[i], keys, mine, tail)] += factor * values[i]


@compiled
def exchange(weights, hot):
    """Exchange changes of the hot weights with the other threads, since this one last looked."""
    shared, seen, mine = hot.shared, hot.seen, hot.mine
    for slot in range(np.uint64(HOT_SLOTS)):
        now = shared[slot] + (weights[mine + slot] - seen[slot])
        shared[slot] = now
        seen[slot] = now
        weights[mine + slot] = now


@compiled
def sweep(data, plan, model, hot, rules, counter, end, stride):
    """Take turns, `stride` apart, until turn `end`; how many rows this thread did. No L1, no average."""
    indptr, indices, values, targets, importance, rows = data  # in the loop, a tuple's arrays would be counted anew
    weights, bounds, done = model.weights, plan.bounds, np.int64(0)
    kind, epsilon, intercept_rate = rules.loss, rules.epsilon, rules.intercept_rate
    flat, prefetched = rules.flat, rules.prefetched
    keys, mine, tail = slots(hot)
    while True:
        turn = fetch_add(counter, 0, stride)
        if turn >= end:
            return done
        chunk = np.uint64(plan.order[turn])
        first, last = np.uint64(bounds[chunk]), np.uint64(bounds[chunk + _ONE])
        rate, scale, shrink = plan.rates[turn], plan.scales[turn], plan.shrinks[turn]
        before = intercept = model.intercept[0]
        loss, factors = 0.0, 1.0
        for at in range(first, last):
            if prefetched:
                soon = np.uint64(rows[at + AHEAD if at + AHEAD < last else last - _ONE])
                for i in range(np.uint64(indptr[soon]), np.uint64(indptr[soon + _ONE])):
                    prefetch(weights, place(indices[i], keys, mine, tail))
            row = np.uint64(rows[at])
            begin, stop = np.uint64(indptr[row]), np.uint64(indptr[row + _ONE])
            known = before if rules.held else intercept
            margin = scale * dot(indices, values, weights, begin, stop, keys, mine, tail) + known
            slope, more, factor = slope_and_loss(kind, margin, targets[row], epsilon)
            loss += more
            factors *= factor
            if factors > 1e200:
                loss += math.log(factors)
                factors = 1.0
            scale *= shrink
            if abs(slope) > flat:
                step = -rate * slope * importance[row]
                intercept += intercept_rate * step
                scaled = np.float32(step / scale)
                add(indices, values, weights, begin, stop, scaled, keys, mine, tail)
        plan.losses[turn] = loss + math.log(factors)
        plan.steps[turn] = intercept - before
        if not rules.held:
            model.intercept[0] += intercept - before
        if hot is not None:
            exchange(weights, hot)
        done += np.int64(last - first)


@compiled
def sweep_with_memory(data, plan, model, rules, counter, end, stride):
    """As `sweep`, with L1 and averaging."""
    indptr, indices, values, targets, importance, rows = data
    weights, paid, lag, done = model.weights, model.paid, model.lag, 0
    while True:
        turn = fetch_add(counter, 0, stride)
        if turn >= end:
            return done
        chunk = np.uint64(plan.order[turn])
        first, last = plan.bounds[chunk], plan.bounds[chunk + _ONE]
        rate, scale, shrink = plan.rates[turn], plan.scales[turn], plan.shrinks[turn]
        owed, clock, averaged = plan.truncations[turn], plan.clocks[turn], plan.clocks[turn] >= 0.0
        intercept = held = model.intercept[0]
        loss, intercepts = 0.0, 0.0
        for at in range(first, last):
            row = np.uint64(rows[at])
            begin, stop = np.uint64(indptr[row]), np.uint64(indptr[row + _ONE])
            margin = scale * dot(indices, values, weights, begin, stop, None, 0, 0) + (
                held if rules.held else intercept
            )
            slope, more, factor = slope_and_loss(rules.loss, margin, targets[row], rules.epsilon)
            loss += more + math.log(factor)
            scale *= shrink
            step = -rate * slope * importance[row]
            intercept += rules.intercept_rate * step
            scaled = np.float32(step / scale)
            owed += rate * rules.truncation
            if slope == 0.0 and rules.truncation == 0.0:
                stop = begin
            for i in range(begin, stop):
                j = np.uint64(indices[i])
                before = weights[j]
                after = before + scaled * values[i]
                if rules.truncation > 0.0:
                    after = truncate(after, scale, owed, paid, j)
                weights[j] = after
                if averaged:
                    lag[j] += (after - before) * np.float32(clock)
            if averaged:
                clock += scale
                intercepts += intercept
        plan.losses[turn] = loss
        plan.steps[turn] = intercept - held
        plan.intercepts[turn] = intercepts
        if not rules.held:
            model.intercept[0] += intercept - held
        done += last - first


@compiled
def merge(array, copies, first, stop):
    """Make array[first:stop] (float32) the mean of it and its copies, one a row, and these that mean: a piece at a time."""
    share = np.float32(1 / (len(copies) + 1))
    for begin in range(np.uint64(first), np.uint64(stop), _MERGED_AT_ONCE):
        end = min(begin + _MERGED_AT_ONCE, np.uint64(stop))
        for copy in range(np.uint64(len(copies))):
            for at in range(begin, end):
                array[at] += copies[copy, at]
        for at in range(begin, end):
            array[at] *= share
        for copy in range(np.uint64(len(copies))):
            for at in range(begin, end):
                copies[copy, at] = array[at]


@inlined
def truncate(weight, scale, owed, paid, j):
    """Apply the L1 penalty that a weight (as v) owes, but not beyond zero."""
    debt = owed - paid[j] if weight < 0.0 else owed + paid[j]
    if weight > 0.0:
        after = np.float32(max(0.0, weight - debt / scale))
    else:
        after = np.float32(min(0.0, weight + debt / scale))
    paid[j] += np.float32(scale * (after - weight))
    return after


@compiled
def truncate_all(weights, scale, owed, paid):
    """Let every weight pay, the ones that no row touched too."""
    for j in range(np.uint64(weights.size)):
        if weights[j] != 0.0:
            weights[j] = truncate(weights[j], scale, owed, paid, j)
