"""Which way is fastest here: tried on the user's own rows, then decided.

Two threads on one small, hot model are slower than one: its cache lines go back and forth. On a large sparse one they
are twice as fast. No rule of thumb tells the two apart on every machine, a short trial does. `fastest` tries ways on copies
of the model, before the training; `Contest` tries one thread in the training itself, so that no time is lost.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARGIN = 1.05  # more threads are taken only if they are this much faster than one: a tie is not worth a second core
WORTH_A_TRIAL_S = 0.3  # a fit that one thread finishes within this is not sped up by looking for something faster
TRIAL_S = 0.02
SMALL_MODEL_BYTES = 256 << 20
"""Up to this size copies for a trial are made in no time; a larger model is so sparse that threads hardly meet."""
REPLICA_WORTH = 0.8
"""The worth of an example to a replica against the shared model: others' work is merged only at the epoch's end."""
_CONTEST_WORK = 400_000  # non-zeros done by one thread: fewer take too short a time to be sure of it
_CONTEST_EPOCHS = 2  # the very first part of a process has to load the kernel, or compile it

Way = tuple[str, int]
"""A model and a number of threads."""
OnCopy = Callable[[str, int], Callable[[int, int], int]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A way to train: `run` works a slice of real rows on a copy of the model, and returns how many examples it did.

    `worth` is what an example done this way is worth, against one on a shared model.
    """

    model: str
    threads: int
    run: Callable[[], int]
    worth: float = 1.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest way, and the examples/s of every (model, threads) that was tried."""

    model: str
    threads: int
    examples_per_s: dict[Way, float]


def choose(trials: Sequence[Trial], budget_s: float = 0.2) -> Chosen:
    """Try them in turn, one thread first, until the time is up; the fastest in examples/s wins, one thread wins a tie.

    Of several runs of a trial the best counts: what else the machine does only ever slows it down. A trial whose turn
    does not come within the time is not taken; a run under way is waited for, so `run` should take about
    `budget_s / 3 / len(trials)`.

    >>> choose([Trial("shared", 1, lambda: 100), Trial("replica", 2, lambda: 1)]).threads
    1
    """
    trials = sorted(trials, key=lambda trial: trial.threads)
    speeds: dict[Way, float] = {}
    end = time.perf_counter() + budget_s
    for trial in itertools.cycle(trials):
        began = time.perf_counter()
        if began > end and speeds:
            break
        examples = trial.run()
        speed = examples / max(time.perf_counter() - began, 1e-9)
        way = trial.model, trial.threads
        speeds[way] = max(speeds.get(way, 0.0), speed)

    def merit(trial: Trial) -> float:
        return speeds.get((trial.model, trial.threads), 0.0) * trial.worth / (MARGIN if trial.threads > 1 else 1.0)

    best = max(trials, key=merit)
    return Chosen(best.model, best.threads, speeds)


def fastest(ways: Sequence[Way], on_a_copy: OnCopy, model_bytes: int, chunks: int, epochs: int) -> Chosen:
    """The fastest of `ways`, of which the first is ("shared", 1) and the second all threads on one model.

    `on_a_copy(model, threads)` gives what does the chunks from a first to a last one on a copy, and counts their examples.
    """
    if len(set(ways)) == 1 or epochs < 1:
        return Chosen("shared", 1, {})
    if model_bytes > SMALL_MODEL_BYTES:
        return Chosen(*ways[1], {})
    one = on_a_copy(*ways[0])
    one(0, 1)  # compiles
    began = time.perf_counter()
    one(0, 1)
    chunk_s = time.perf_counter() - began
    if chunk_s * chunks * epochs < WORTH_A_TRIAL_S:
        return Chosen("shared", 1, {})
    length = min(chunks, max(ways[1][1], int(TRIAL_S / chunk_s)))

    def trial(model: str, threads: int) -> Trial:
        do = on_a_copy(model, threads)
        firsts = itertools.cycle(range(0, chunks - length + 1, length))  # rows that were read just now are in a cache

        def run() -> int:
            first = next(firsts)
            return do(first, first + length)

        return Trial(model, threads, run, worth=REPLICA_WORTH if model == "replica" else 1.0)

    return choose([trial(*way) for way in ways])


class Contest:
    """Says of each part of an epoch whether all threads shall do it, and times them until enough was timed.

    The last eighth of the first epochs is done by one thread, on the model that is being trained, and the faster way goes on.
    All threads have the larger part because what it costs to bring replicas together counts once a part, and once an epoch
    later.

    It is `open` while it goes on; all threads have `won` while they have been faster than one. `work` is that of each chunk,
    in non-zeros.
    """

    def __init__(self, work: NDArray[np.float64], *, open: bool) -> None:
        self.open, self.won = open, True
        self._work, self._timed, self._epochs = work, 0.0, 0
        self._speeds = {True: 0.0, False: 0.0}  # the best, since other load can only slow threads down

    def parts(self, order: NDArray[np.uint32]) -> Iterator[tuple[NDArray[np.uint32], bool]]:
        """(turns, whether all threads do them); the caller's work on each is timed."""
        if not self.open:
            yield order, self.won
            return
        cut = 7 * len(order) // 8
        for part, by_all in ((order[:cut], True), (order[cut:], False)):
            began = time.perf_counter()
            yield part, by_all
            work = float(self._work[part].sum())
            self._speeds[by_all] = max(self._speeds[by_all], work / max(time.perf_counter() - began, 1e-9))
        self._timed += work
        self._epochs += 1
        self.open = self._timed < _CONTEST_WORK or self._epochs < _CONTEST_EPOCHS
        self.won = self._speeds[True] > MARGIN * self._speeds[False]
