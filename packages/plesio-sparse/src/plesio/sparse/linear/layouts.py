"""Where the weights lie while threads learn: shared by all, a replica each, or only the hot ones a copy each.

Threads that share a small model write the same cache lines all the time and wait for each other's; the frequent
features are the conflict, the rare ones hardly ever. So a small model has a replica a thread, merged to the mean after
the epoch, or the part of one that is timed (each replica takes its share of the penalty, so the objective stays what it
was), and of a large one the hottest weights are copied, and exchanged after each chunk. `Coloured`, and `Replicas` of a
fixed number, have no race at all: the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.csr import Rows
from plesio.sparse.epochs import slices
from plesio.sparse.linear.deals import Deal
from plesio.sparse.linear.kernels import HOT_SLOTS, Data, Hot, Model, Plan, Rules, merge, sweep, sweep_with_memory
from plesio.sparse.linear.plans import Learner
from plesio.sparse.threads import pool

FIXED_REPLICAS = 4  # how many replicas there are where their number must not depend on that of the threads
_HOT_SAMPLE = 100_000  # non-zeros looked at to find the hot features
_WORTH_MEETING = 20_000  # non-zeros: a group with fewer is done by one thread sooner than by several


class _Turns:
    """Turns `first` to `end` − 1, to be taken by any number of threads; `stride` apart if each has its own."""

    def __init__(self, data: Data, plan: Plan, rules: Rules, first: int, end: int, stride: int = 1) -> None:
        self._work, self._end, self._stride = (data, plan, rules), end, stride
        self._counter = np.array([first])

    def take(self, model: Model, hot: Hot | None = None) -> int:
        data, plan, rules = self._work
        if len(model.paid) or len(model.lag):
            return int(sweep_with_memory(data, plan, model, rules, self._counter, self._end, self._stride))
        return int(sweep(data, plan, model, hot, rules, self._counter, self._end, self._stride))


def _on(threads: int, call: Callable[[int], int]) -> list[int]:
    return pool(threads).run(call) if threads > 1 else [call(0)]  # one needs no pool, and may be inside one already


def _sliced(
    threads: int, plan: Plan, first: int, end: int, work: Callable[[int, int], Callable[[int], int]]
) -> list[int]:
    """Run `work(begin, stop)` on all threads for one slice of the turns after the other: a Ctrl-C is heard between."""
    done = np.zeros(threads, np.int64)
    for begin, stop in slices(end - first, whole=len(plan.bounds) - 1):
        done += _on(threads, work(first + begin, first + stop))
    return [int(rows) for rows in done]


class Shared:
    """One model for all threads; with one thread, a plain loop."""

    share = 1.0

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __call__(self, learner: Learner, data: Data, plan: Plan, rules: Rules, first: int, end: int) -> list[int]:
        def work(begin: int, stop: int) -> Callable[[int], int]:
            turns = _Turns(data, plan, rules, begin, stop)
            return lambda _: turns.take(learner.model)

        learner.moved = True
        return _sliced(self._threads, plan, first, end, work)


class Replicas:
    """A model for each thread, merged to the mean; if `fixed`, for each of a fixed number of shares of the turns.

    The learner's own model is the first of them. They are left equal, for the next time.
    """

    def __init__(self, threads: int, *, fixed: bool = False) -> None:
        self._threads, self._fixed = threads, fixed
        self._count = FIXED_REPLICAS if fixed else threads
        self._copies: Any = None  # a Model whose arrays have a row for each replica but the first
        self.share = 1 / self._count

    def __call__(self, learner: Learner, data: Data, plan: Plan, rules: Rules, first: int, end: int) -> list[int]:
        def shared_turns(begin: int, stop: int) -> Callable[[int], int]:
            turns = _Turns(data, plan, rules, begin, stop)
            return lambda thread: turns.take(models[thread])

        def fixed_turns(begin: int, stop: int) -> Callable[[int], int]:
            own = [
                _Turns(data, plan, rules, begin + (number - begin) % self._count, stop, self._count)
                for number in range(self._count)
            ]
            ticket = count()  # the next free thread takes the next replica

            def work(_: int) -> int:
                rows = 0
                while (number := next(ticket)) < self._count:
                    rows += own[number].take(models[number])
                return rows

            return work

        models = self._models(learner)
        done = _sliced(self._threads, plan, first, end, fixed_turns if self._fixed else shared_turns)
        self._merge(learner.model)
        learner.moved = False
        return done

    def _models(self, learner: Learner) -> list[Model]:
        """As many as there are replicas, all equal."""
        main = learner.model
        fresh = self._copies is None or any(
            own.shape[1:] != one.shape for own, one in zip(self._copies, main, strict=True)
        )
        if fresh:
            self._copies = Model(*(np.empty((self._count - 1, len(array)), array.dtype) for array in main))
        if fresh or learner.moved:
            self._on_parts(main, lambda array, copies, first, stop: np.copyto(copies[:, first:stop], array[first:stop]))
        return [main, *(Model(*arrays) for arrays in zip(*self._copies, strict=True))]

    def _merge(self, main: Model) -> None:
        for copy in self._copies.intercept:
            main.intercept[:] += copy
        main.intercept[:] *= 1 / self._count
        self._copies.intercept[:] = main.intercept
        self._on_parts(main._replace(intercept=main.intercept[:0]), merge)

    def _on_parts(self, main: Model, do: Callable[[Any, Any, int, int], None]) -> None:
        """Each thread does its part of every array, together with the copies of it."""

        def part(thread: int) -> int:
            for array, copies in zip(main, self._copies, strict=True):
                first, stop = (len(array) * at // self._threads for at in (thread, thread + 1))
                if first < stop:
                    do(array, copies, first, stop)
            return 0

        _on(self._threads, part)


class HotCopies:
    """One model for all threads, and copies of its hottest weights for each, exchanged after every chunk.

    Weights and copies are one array, so that a kernel finds either by an addition; `weights` is where the learner's
    weights have to be.
    """

    share = 1.0

    def __init__(self, threads: int, rows: Rows) -> None:
        self._threads = threads
        self._all = np.zeros(threads * HOT_SLOTS + rows.features, np.float32)
        self.weights = self._all[threads * HOT_SLOTS :]
        self._keys, self._slots = hottest(rows)

    def __call__(self, learner: Learner, data: Data, plan: Plan, rules: Rules, first: int, end: int) -> list[int]:
        assert learner.weights is self.weights
        features = self._keys[self._slots]
        shared = np.zeros(HOT_SLOTS, np.float32)
        shared[self._slots] = self.weights[features]
        model = learner.model._replace(weights=self._all)
        tail, copies = np.uint64(self._threads * HOT_SLOTS), []
        for thread in range(self._threads):
            mine = thread * HOT_SLOTS
            self._all[mine : mine + HOT_SLOTS] = shared
            copies.append(Hot(self._keys, np.uint64(mine), tail, shared, shared.copy()))

        def work(begin: int, stop: int) -> Callable[[int], int]:
            turns = _Turns(data, plan, rules, begin, stop)
            return lambda thread: turns.take(model, copies[thread])

        done = _sliced(self._threads, plan, first, end, work)
        self.weights[features] = shared[self._slots]
        return done


def hottest(rows: Rows) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
    """The most frequent features of a sample: (the feature of each slot, the slots that have one)."""
    places = np.random.default_rng(0).integers(rows.nonzeros, size=min(rows.nonzeros, _HOT_SAMPLE))
    sample = rows.indices[places]
    features, counts = np.unique(sample, return_counts=True)
    by_frequency = features[np.argsort(counts, kind="stable")]
    keys = np.arange(1, HOT_SLOTS + 1, dtype=np.uint32)  # feature s + 1 cannot have slot s: the slot is empty
    slots = by_frequency % HOT_SLOTS
    keys[slots] = by_frequency  # where several want a slot the last, most frequent one gets it
    return keys, np.unique(slots)


class Coloured:
    """One model, and one group of rows without a common feature after the other: no race, the same bits always."""

    share = 1.0

    def __init__(self, threads: int, deal: Deal, nonzeros_per_row: float) -> None:
        self._threads, self._deal, self._nonzeros_per_row = threads, deal, nonzeros_per_row

    def __call__(self, learner: Learner, data: Data, plan: Plan, rules: Rules, first: int, end: int) -> list[int]:
        group = self._deal.group[plan.order[first:end]]
        cuts = [0, *(np.flatnonzero(np.diff(group)) + 1), len(group)]
        done = np.zeros(self._threads, np.int64)
        sizes = np.diff(plan.bounds)[plan.order]
        for begin, stop in pairwise(first + int(cut) for cut in cuts):
            parallel = bool(self._deal.parallel[group[begin - first]])
            work = sizes[begin:stop].sum() * self._nonzeros_per_row
            threads = self._threads if parallel and work > _WORTH_MEETING else 1
            turns = _Turns(data, plan, rules._replace(held=parallel), begin, stop)
            done[:threads] += _on(threads, lambda _: turns.take(learner.model))  # noqa: B023  run at once
            if parallel:
                learner.intercept[0] += plan.steps[begin:stop].sum()
        return [int(rows) for rows in done]


Layout = Shared | Replicas | HotCopies | Coloured
"""A way to do the turns first to end − 1 of a plan. Returns the rows done by thread; `share` is as in `make_plan`."""
