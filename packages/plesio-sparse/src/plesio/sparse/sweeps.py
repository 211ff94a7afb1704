"""One sweep of a user's kernel over its data: without any order among the threads, or group after group.

Both do the same examples at the same learning rates. The second ends with the bits that one thread gets from the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from plesio.sparse.choosing import Chosen, fastest
from plesio.sparse.compiling import Loops
from plesio.sparse.conflict_free import Groups, colour
from plesio.sparse.epochs import slices
from plesio.sparse.threads import pool


class Work(NamedTuple):
    """The work: a compiled update of these parameters, over this data divided into chunks."""

    loops: Loops
    parameters: Any
    data: Any
    bounds: NDArray[np.int64]

    def copies(self, count: int) -> list[Work]:
        kind = type(self.parameters)
        return [self._replace(parameters=kind(*(array.copy() for array in self.parameters))) for _ in range(count)]

    def loop(self, order: Any, lrs: Any, counter: Any, stop: int) -> tuple[float, int]:
        """Take chunks until `stop`, beside other threads: the sum of the losses, and how many examples."""
        return self.loops.free(self.parameters, self.data, self.bounds, order, lrs, counter, stop)  # type: ignore[no-any-return]


class Free:
    """Threads take chunk after chunk; they share one model, or have a replica each that is merged after the epoch.

    On a small model that all threads write all the time, cache lines go back and forth between cores; a replica each avoids
    that.
    """

    def __init__(self, work: Work, threads: int, replicas: bool) -> None:
        self._work, self._threads = work, threads
        self._each = work.copies(threads) if replicas else [work] * threads
        self._replicas = [each.parameters for each in self._each] if replicas else []
        self._counter = np.zeros(1, np.int64)

    def __call__(self, order: NDArray[np.uint32], lrs: NDArray[Any]) -> tuple[float, list[int]]:
        """Do an epoch, the chunks in this order: the sum of the losses, and the examples by thread."""
        loss, examples = 0.0, [0] * self._threads
        for first, stop in slices(len(order), length=16):
            done = self.chunks(order, lrs, first, stop)
            loss += sum(one for one, _ in done)
            examples = [before + more for before, (_, more) in zip(examples, done, strict=True)]
        self.merge()
        return loss, examples

    def chunks(self, order: Any, lrs: Any, first: int, stop: int) -> list[tuple[float, int]]:
        """Do the chunks order[first:stop]; loss and examples by thread."""
        self._counter[0] = first
        return pool(self._threads).run(lambda thread: self._each[thread].loop(order, lrs, self._counter, stop))

    def merge(self) -> None:
        if self._replicas:
            merge(self._work.parameters, self._replicas)


class Grouped:
    """Threads do one conflict-free group after the other: the same bits for any number of threads."""

    def __init__(self, work: Work, threads: int, indptr: NDArray[np.int64], indices: NDArray[np.uint32]) -> None:
        self._work, self._threads = work, threads
        self._indptr, self._indices = indptr, indices

    def __call__(self, order: NDArray[np.uint32], lrs: NDArray[Any]) -> tuple[float, list[int]]:
        bounds = self._work.bounds
        rows = np.concatenate([np.arange(bounds[chunk], bounds[chunk + 1], dtype=np.uint32) for chunk in order])
        groups = colour(self._indptr, self._indices, rows)
        losses = np.zeros(len(rows))
        examples = np.zeros(self._threads, np.int64)
        for first, stop in slices(len(groups.parallel)):
            share = partial(self._share, groups, lrs, losses, np.zeros(2, np.int64), first, stop)
            examples += pool(self._threads).run(share)
        return math.fsum(losses), examples.tolist()

    def _share(
        self, groups: Groups, lrs: Any, losses: Any, gate: NDArray[np.int64], first: int, stop: int, thread: int
    ) -> int:
        loops, parameters, data, bounds = self._work
        settings = int(bounds[1]), lrs, losses, gate, thread, self._threads, first, stop
        try:
            return loops.grouped(parameters, data, *groups, *settings)  # type: ignore[no-any-return]
        except BaseException:
            gate[1] = 1  # the others wait for this thread: tell them it will not come
            raise


def merge(arrays: Sequence[NDArray[Any]], replicas: Sequence[Sequence[NDArray[Any]]]) -> None:
    """Bring what the replicas moved into `arrays`, and the replicas back to it.

    A parameter moves by the mean over those threads that moved it. A mean over all threads would halve the progress of what only
    one of two threads saw.

    >>> shared, one, other = np.zeros(3), np.array([2.0, 0.0, 1.0]), np.array([4.0, 0.0, 0.0])
    >>> merge([shared], [[one], [other]])
    >>> shared.tolist()
    [3.0, 0.0, 1.0]
    """
    for number, array in enumerate(arrays):
        copies = tuple(replica[number].reshape(-1) for replica in replicas)
        _merge(array.reshape(-1), copies, array.dtype.kind in "iub")


@njit(nogil=True, cache=True)
def _merge(shared: Any, copies: Any, count: bool) -> None:
    """Whole numbers are taken for counts: they add up."""
    for at in range(len(shared)):
        before, moved = shared[at], 0
        total = shared[at] - shared[at]
        for copy in copies:
            if copy[at] != before:
                total += copy[at] - before
                moved += 1
        if moved:
            shared[at] = before + (total if count else total / moved)
            for copy in copies:
                copy[at] = shared[at]


def chosen(work: Work, order: NDArray[np.uint32], lrs: NDArray[Any], epochs: int, threads: int) -> Chosen:
    """One thread or all, one shared model or replicas: what is fastest on copies of the model and some of the rows."""

    def on_a_copy(model: str, threads: int) -> Callable[[int, int], int]:
        sweep = Free(work.copies(1)[0], threads, replicas=model == "replica")

        def some(first: int, stop: int) -> int:
            done = sweep.chunks(order, lrs, first, stop)
            if stop - first == len(order):
                sweep.merge()  # an epoch as short as that has a merge as often
            return sum(examples for _, examples in done)

        return some

    ways = [("shared", 1), ("shared", threads), ("replica", threads)] if threads > 1 else [("shared", 1)]
    size = sum(array.nbytes for array in work.parameters)
    return fastest(ways, on_a_copy, size, len(order), epochs)
