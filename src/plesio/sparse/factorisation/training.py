"""Sweeps over the ratings, by as many threads as are worth it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.choosing import MARGIN
from plesio.sparse.factorisation.kernels import AHEAD, Rivals, Step, Tables, Work, bpr, squared
from plesio.sparse.factorisation.layout import Layout
from plesio.sparse.rates import Rate
from plesio.sparse.threads import pool

LEAST_FALL = 1e-3
"""A loss that falls by a smaller share than this in an epoch has stopped falling."""
WORTH_THREADS = 4e8
"""Numbers in the users' rows that a fit goes through. With fewer it takes a quarter of a second, and one thread."""
RIVAL_COST = 4
"""How much longer `bpr` takes for a row: it draws items, and looks up whether the user has them."""
TRIED = 8
"""Chunks a thread in a slice of the trial: fewer would not end at about the same time."""


@dataclass
class Training:
    """A model, the ratings it learns from, and how many threads do it. `rivals` are for `bpr`, which has no ratings."""

    tables: tuple[NDArray[np.float32], NDArray[np.float32]]
    layout: Layout
    step: Step
    rivals: Rivals | None
    threads: int = 1
    on_trial: bool = False
    """Whether the next sweep is to find out if `threads` are faster than one."""

    def doubt(self, epochs: int) -> None:
        """Take one thread for a small fit, of so many epochs; for a large one, find out in the first."""
        numbers = len(self.layout.users) * epochs * self.tables[0].shape[1]
        numbers *= 1 if self.rivals is None else RIVAL_COST
        self.on_trial = self.threads > 1 and numbers >= WORTH_THREADS
        if not self.on_trial:
            self.threads = 1

    def sweep(self, order: NDArray[np.uint32], lrs: NDArray[np.float32], key: int) -> tuple[float, list[int]]:
        """An epoch: the sum of the losses, and the ratings by thread."""
        losses, done = np.zeros(self.layout.chunks), [0] * self.threads

        def do(first: int, stop: int, threads: int) -> int:
            more = self._chunks(order, lrs, key, losses, first, stop, threads)
            done[:threads] = [before + by for before, by in zip(done, more, strict=False)]
            return sum(more)

        tried = self._try(do) if self.on_trial else 0
        for first, stop in self.layout.rounds(tried):
            do(first, stop, self.threads)
        return float(losses.sum()), done  # summed by chunk, whoever did it

    def _try(self, do: Callable[[int, int, int], int]) -> int:
        """Go on with one thread if all are not faster on the first chunks, done in turn; how many chunks that took.

        Each has two slices, of which the better counts: what else the machine does only ever slows it down.
        """
        do(0, 0, 1)  # nothing, but compiled
        speeds = {1: 0.0, self.threads: 0.0}
        length = min(TRIED * self.threads, self.layout.chunks // 4)
        for turn, threads in enumerate([1, self.threads] * 2):
            began = time.perf_counter()
            examples = do(turn * length, (turn + 1) * length, threads)
            speeds[threads] = max(speeds[threads], examples / (time.perf_counter() - began))
        if speeds[self.threads] < MARGIN * speeds[1]:
            self.threads = 1
        self.on_trial = False
        return 4 * length

    def _chunks(self, order: Any, lrs: Any, key: int, losses: Any, first: int, stop: int, threads: int) -> list[int]:
        """Do the chunks order[first:stop]; the ratings by thread."""
        work = Work(order, stop, np.array([first]), self.layout.bounds, lrs, losses)
        users, items = self.tables
        tables = Tables(users.reshape(-1), items.reshape(-1), np.uintp(users.shape[1]))
        layout, step = self.layout, self.step
        if self.rivals is None:
            return pool(threads).run(
                lambda thread: squared(work, tables, step, layout.users, layout.items, layout.ratings)
            )
        rivals = self.rivals._replace(key=np.uint64(key))
        drawn = np.empty((threads, 4 * AHEAD), np.uint32)  # no cache line has two threads' draws
        return pool(threads).run(
            lambda thread: bpr(work, tables, step, layout.users, layout.items, rivals, drawn[thread])
        )


def lrs_of(falling: Rate, layout: Layout, order: NDArray[np.uint32], epoch: int, before: int, total: int) -> Any:
    """The learning rate of each chunk, by how many ratings come before it in the epoch's order, and came before that."""
    sizes = np.diff(layout.bounds)[order]
    lrs = np.empty(layout.chunks, np.float32)
    lrs[order] = falling.over(epoch, before + np.cumsum(sizes) - sizes, total)
    return lrs


def key_of(seed: int, epoch: int) -> int:
    """What the epoch's draws are made from: 64 bits."""
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0])


class Falling:
    """A rate that is told the loss after each epoch; "adaptive" goes down when that stops falling, and is `over` some day."""

    def __init__(self, rate: Rate) -> None:
        self.rate, self.least, self.over = rate, float("inf"), False

    def see(self, loss: float) -> None:
        """The mean loss of the epoch just done."""
        if self.rate.name == "adaptive" and loss > self.least * (1 - LEAST_FALL):
            self.over = not self.rate.plateau()
        self.least = min(self.least, loss)


class Best:
    """Keeps the tables of the best score, and is `over` after `patience` epochs in a row without a better one; 0 for never."""

    def __init__(self, patience: int, copies: Callable[[], Any]) -> None:
        self._patience, self._copies = patience, copies
        self.score, self.waited = -float("inf"), 0
        self.tables: Any = None

    def see(self, score: float | None) -> None:
        """The score of the epoch just done."""
        if not self._patience or score is None:
            return
        self.waited += 1
        if score > self.score:
            self.score, self.waited, self.tables = score, 0, self._copies()

    @property
    def over(self) -> bool:
        """Whether it is time to stop."""
        return 0 < self._patience <= self.waited
