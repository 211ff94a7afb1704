"""Sweeps over the ratings, by as many threads as are worth it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.hogwild.choosing import Trial, choose
from plesio.hogwild.epochs import Epoch
from plesio.hogwild.factorisation.kernels import Rivals, Step, Tables, Work, bpr, squared
from plesio.hogwild.factorisation.layout import Layout
from plesio.hogwild.rates import Rate
from plesio.hogwild.threads import pool

LEAST_FALL = 1e-3
"""A loss that falls by a smaller share than this in an epoch has stopped falling."""
WORTH_A_TRIAL_S = 0.6
"""A fit that one thread finishes within this is hardly sped up by a trial of 0.2 s and then two threads."""


@dataclass(frozen=True)
class Training:
    """A model, the ratings it learns from, and how many threads do it. `rivals` are for `bpr`, which has no ratings."""

    tables: tuple[NDArray[np.float32], NDArray[np.float32]]
    layout: Layout
    step: Step
    rivals: Rivals | None
    threads: int = 1

    def sweep(self, order: NDArray[np.uint32], lrs: NDArray[np.float32], key: int) -> tuple[float, list[int]]:
        """An epoch: the sum of the losses, and the ratings by thread."""
        losses, done = np.zeros(self.layout.chunks), [0] * self.threads
        for first, stop in self.layout.rounds():
            more = self.chunks(order, lrs, key, losses, first, stop)
            done = [before + by for before, by in zip(done, more, strict=True)]
        return float(losses.sum()), done  # summed by chunk, whoever did it

    def chunks(self, order: Any, lrs: Any, key: int, losses: Any, first: int, stop: int) -> list[int]:
        """Do the chunks order[first:stop]; the ratings by thread."""
        work = Work(order, stop, np.array([first]), self.layout.bounds, lrs, losses)
        users, items = self.tables
        tables = Tables(users.reshape(-1), items.reshape(-1), np.uintp(users.shape[1]))
        layout, step = self.layout, self.step
        if self.rivals is None:
            return pool(self.threads).run(
                lambda thread: squared(work, tables, step, layout.users, layout.items, layout.ratings)
            )
        rivals = self.rivals._replace(key=np.uint64(key))
        return pool(self.threads).run(lambda thread: bpr(work, tables, step, layout.users, layout.items, rivals))

    def fastest(self, copies: Callable[[], Any], order: Any, lrs: Any, epochs: int, threads: int) -> Training:
        """This training with one thread, or with all if that is faster on copies of the tables and some of the chunks."""
        if threads == 1:
            return self
        alone = replace(self, tables=copies())
        losses = np.zeros(self.layout.chunks)
        alone.chunks(order, lrs, 0, losses, 0, 0)  # nothing, but compiled
        began = time.perf_counter()
        alone.chunks(order, lrs, 0, losses, 0, 1)
        chunk_s = time.perf_counter() - began
        if chunk_s * len(order) * epochs < WORTH_A_TRIAL_S:
            return self
        length = min(len(order), max(4 * threads, int(0.03 / chunk_s)))

        def trial(training: Training) -> Callable[[], int]:
            first = -length

            def run() -> int:
                nonlocal first
                first = first + length if first + 2 * length <= len(order) else 0
                return sum(training.chunks(order, lrs, 0, losses, first, first + length))

            return run

        ways = [alone, replace(self, tables=copies(), threads=threads)]
        chosen = choose([Trial("shared", way.threads, trial(way)) for way in ways])
        return replace(self, threads=chosen.threads)


def lrs_of(falling: Rate, layout: Layout, order: NDArray[np.uint32], epoch: int, epochs: int) -> NDArray[np.float32]:
    """The learning rate of each chunk, by how many ratings come before it in the epoch's order."""
    sizes, ratings = np.diff(layout.bounds)[order], len(layout.users)
    lrs = np.empty(layout.chunks, np.float32)
    lrs[order] = falling.over(epoch, epoch * ratings + np.cumsum(sizes) - sizes, epochs * ratings)
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
    """A callback that stops after `patience` epochs in a row without a better score, and keeps the tables of the best."""

    def __init__(self, patience: int, copies: Callable[[], Any]) -> None:
        self._patience, self._copies = patience, copies
        self._score, self._waited = -float("inf"), 0
        self.tables: Any = None

    def __call__(self, epoch: Epoch) -> bool:
        if not self._patience or epoch.score is None:
            return False
        self._waited += 1
        if epoch.score > self._score:
            self._score, self._waited, self.tables = epoch.score, 0, self._copies()
        return self._waited >= self._patience
