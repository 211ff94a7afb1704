"""Which way is fastest here: tried on the user's own rows for a fifth of a second, then decided.

Two threads on one small, hot model are slower than one: its cache lines go back and forth. On a large sparse one they
are twice as fast. No rule of thumb tells the two apart on every machine, a short trial does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MARGIN = 1.05
"""More threads are taken only if they are this much faster than one: a tie is not worth a second core."""


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
    examples_per_s: dict[tuple[str, int], float]


def choose(trials: Sequence[Trial], budget_s: float = 0.2) -> Chosen:
    """Try them in turn, one thread first, until the time is up; the fastest in examples/s wins, one thread wins a tie.

    Of several runs of a trial the best counts: what else the machine does only ever slows it down. A trial whose turn
    does not come within the time is not taken; a run under way is waited for, so `run` should take about
    `budget_s / 3 / len(trials)`.

    >>> choose([Trial("shared", 1, lambda: 100), Trial("replica", 2, lambda: 1)]).threads
    1
    """
    trials = sorted(trials, key=lambda trial: trial.threads)
    speeds: dict[tuple[str, int], float] = {}
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
