"""How sparse a problem is, and what threads that share one model do to each other on it.

The sparsity is that of Niu, Recht, Ré and Wright (2011), for examples e of a set E that each touch some parameters:

    Ω = max |e|                               the largest example
    Δ = max_v |{e : v in e}| / |E|            the parameter that most examples touch
    ρ = max_e |{e' : e and e' meet}| / |E|    the example that most examples share a parameter with

The rest is measured, not modelled: the real threads go over real rows, and instead of weights they update counters that
tell who was there in between.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from plesio.kernels.intrinsics import fetch_add, inner, load, meet
from plesio.sparse.chunks import chunk_bounds
from plesio.sparse.threads import pool

SEARCH_STEPS = 100_000_000  # the search for ρ ends after this many steps, about 0.3 s, with the largest overlap found
CACHE_LINE = 8  # int64 numbers in one: threads' own counters are this far apart


class Touched(NamedTuple):
    """Which parameters each example touches, each parameter once: a CSR matrix without values."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.uint32]
    parameters: int


class Sparsity(NamedTuple):
    """ρ, Δ and Ω of the 2011 paper. If not `rho_exact`, ρ is at least this: the search was cut short."""

    rho: float
    delta: float
    omega: int
    rho_exact: bool


class Meetings(NamedTuple):
    """The measurements of the instrumented threads, in the words of `Report`."""

    watched: int = 0
    cores: float = 0.0
    collision_rate: float = 0.0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    updates: int = 0
    lost_updates: int = 0


@njit(nogil=True, cache=True)
def _gather(indptr: Any, indices: Any, rows: Any, parameters: int, left_out: Any) -> Any:
    total = 0
    for row in rows:
        total += indptr[row + 1] - indptr[row]
    starts, kept = np.zeros(len(rows) + 1, np.int64), np.empty(total, np.uint32)
    last = np.zeros(parameters, np.int64)  # one more than the row that touched it last: touched twice counts once
    end = 0
    for at in range(len(rows)):
        for place in range(indptr[rows[at]], indptr[rows[at] + 1]):
            parameter = indices[place]
            if last[parameter] != at + 1 and not left_out[parameter]:
                last[parameter] = at + 1
                kept[end] = parameter
                end += 1
        starts[at + 1] = end
    return starts, kept[:end]


def gather(indptr: Any, indices: Any, parameters: int, rows: Any, left_out: NDArray[Any] | None = None) -> Touched:
    """What `rows` touch, but for the parameters `left_out`: those each thread keeps for itself."""
    mask = np.zeros(parameters, dtype=np.bool_)
    if left_out is not None:
        mask[left_out] = True
    starts, kept = _gather(np.asarray(indptr), np.asarray(indices), rows, parameters, mask)
    return Touched(starts, kept, parameters)


def sparsity(touched: Touched) -> Sparsity:
    """ρ, Δ and Ω.

    >>> indptr, indices = np.array([0, 2, 4, 5]), np.array([0, 1, 1, 2, 3], np.uint32)  # {0, 1}, {1, 2} and {3}
    >>> [round(float(value), 2) for value in sparsity(Touched(indptr, indices, 4))[:3]]
    [0.67, 0.67, 2.0]
    """
    from scipy import sparse

    indptr, indices, parameters = touched
    examples = len(indptr) - 1
    if not len(indices):
        return Sparsity(0.0, 0.0, 0, True)
    by_example = sparse.csr_array((np.ones(len(indices), np.int64), indices, indptr), shape=(examples, parameters))
    by_parameter = by_example.tocsc()
    others, starts = by_parameter.indices, by_parameter.indptr
    counts = np.diff(starts)
    bounds = np.minimum(by_example @ counts, examples)  # no example meets more than this
    first = np.array([bounds.argmax()])
    most, _ = _largest_overlap(indptr, indices, others, starts, bounds, first, 0, SEARCH_STEPS)
    rest = np.flatnonzero(bounds > most)
    order = rest[np.argsort(-bounds[rest], kind="stable")]
    most, exact = _largest_overlap(indptr, indices, others, starts, bounds, order, most, SEARCH_STEPS)
    return Sparsity(most / examples, int(counts.max()) / examples, int(np.diff(indptr).max()), exact)


@njit(nogil=True, cache=True)
def _largest_overlap(
    indptr: Any, indices: Any, examples: Any, starts: Any, bounds: Any, order: Any, most: int, steps: int
) -> Any:
    """How many examples the most connected one meets: those that could meet most are looked at first."""
    counted_for = np.full(len(bounds), -1, np.int64)
    for example in order:
        if bounds[example] <= most:
            return most, True
        if steps < 0:
            return most, False
        met = 0
        for place in range(indptr[example], indptr[example + 1]):
            parameter = indices[place]
            for other in examples[starts[parameter] : starts[parameter + 1]]:
                if counted_for[other] != example:
                    counted_for[other] = example
                    met += 1
            steps -= starts[parameter + 1] - starts[parameter]
        most = max(most, met)
    return most, True


def watch(touched: Touched, threads: int, budget_s: float = 0.2, chunk: int = 256) -> Meetings:
    """Let `threads` threads go over the examples again and again for about `budget_s`, dealt in chunks as in a fit.

    An example reads the version of each of its parameters, then moves each on by one: atomically, which finds who else
    moved it in between, and in a second array by a plain addition, as a fit does, which may get lost.
    """
    bounds = chunk_bounds(len(touched.indptr) - 1, chunk)
    versions, plain = np.zeros(touched.parameters, np.int64), np.zeros(touched.parameters, np.int64)
    clocks = np.zeros(threads * CACHE_LINE, np.int64)
    room = int(np.diff(touched.indptr).max(initial=0))

    def look(counter: Any, gate: Any, thread: int) -> Any:
        place = counter, gate, thread, threads
        try:
            before_s = time.thread_time()
            seen = _watched(touched.indptr, touched.indices, bounds, versions, plain, clocks, room, *place)
            return *seen, time.thread_time() - before_s
        except BaseException:
            gate[1] = 1  # Ctrl-C before it came to the meeting: the others need not wait
            raise

    began, taken_s, passes = time.perf_counter(), 0.0, list[Any]()
    while taken_s <= budget_s:
        passes += pool(threads).run(partial(look, np.zeros(1, np.int64), np.zeros(2, np.int64)))
        taken_s = time.perf_counter() - began
    examples, collided, stale, stalest, computed_s = zip(*passes, strict=True)
    done, updates = sum(examples), int(versions.sum())
    return Meetings(
        watched=done,
        cores=sum(computed_s) / taken_s,
        collision_rate=sum(collided) / max(done, 1),
        staleness_mean=sum(stale) / max(done, 1),
        staleness_max=max(stalest),
        updates=updates,
        lost_updates=updates - int(plain.sum()),
    )


@njit(nogil=True, cache=True)
def _watched(
    indptr: Any, indices: Any, bounds: Any, versions: Any, plain: Any, clocks: Any, room: int,
    counter: Any, gate: Any, thread: int, threads: int,
) -> Any:  # fmt: skip
    """One thread's pass: (examples, collided, sum of staleness, largest staleness)."""
    read = np.empty(room, np.int64)
    examples, collided, stale_sum, stale_max = 0, 0, 0, 0
    meet(gate, threads)  # no thread passes before the last has begun
    while True:
        chunk = fetch_add(counter, 0, 1)
        if chunk >= len(bounds) - 1:
            return examples, collided, stale_sum, stale_max
        for row in range(bounds[chunk], bounds[chunk + 1]):
            begin, end = indptr[row], indptr[row + 1]
            before = _others(clocks, thread, threads)
            for place in range(begin, end):
                read[place - begin] = load(versions, indices[place])
            clocks[thread * CACHE_LINE] += 1
            stale = 0
            for place in range(begin, end):
                parameter = indices[place]
                stale = max(stale, fetch_add(versions, parameter, 1) - read[place - begin])
                plain[parameter] += 1
            collided += stale > 0
            stale = max(stale, _others(clocks, thread, threads) - before)
            stale_sum += stale
            stale_max = max(stale_max, stale)
            examples += 1


@inner
def _others(clocks: Any, thread: int, threads: int) -> Any:
    """How many examples the other threads have begun to write."""
    total = 0
    for other in range(threads):
        if other != thread:
            total += load(clocks, other * CACHE_LINE)
    return total
