"""Sweeps over the ratings, by as many threads as are worth it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.choosing import Contest
from plesio.sparse.factorisation.kernels import AHEAD, Rivals, Step, Tables, Work, bpr, squared
from plesio.sparse.factorisation.layout import Layout
from plesio.sparse.rates import Rate
from plesio.sparse.threads import pool

LEAST_FALL = 1e-3  # a loss that falls by a smaller share than this in an epoch has stopped falling
WORTH_THREADS = 4e8
"""Numbers in the users' rows that a fit goes through. With fewer it takes a quarter of a second, and one thread."""
RIVAL_COST = 4  # how much longer `bpr` takes for a row: it draws items, and looks up whether the user has them


@dataclass
class Training:
    """A model, the ratings it learns from, and how many threads do it. `rivals` are for `bpr`, which has no ratings."""

    tables: tuple[NDArray[np.float32], NDArray[np.float32]]
    layout: Layout
    step: Step
    rivals: Rivals | None
    threads: int = 1

    def __post_init__(self) -> None:
        self.contest = Contest(np.diff(self.layout.bounds) * float(self.tables[0].shape[1]), open=False)

    def doubt(self, epochs: int) -> None:
        """Take one thread for a small fit, of so many epochs; for a large one, find out in the first epochs."""
        numbers = len(self.layout.users) * epochs * self.tables[0].shape[1]
        numbers *= 1 if self.rivals is None else RIVAL_COST
        if numbers < WORTH_THREADS:
            self.threads = 1
        self.contest.open = self.threads > 1 and epochs > 1

    @property
    def winner(self) -> int:
        return self.threads if self.contest.won else 1

    def sweep(self, order: NDArray[np.uint32], lrs: NDArray[np.float32], key: int) -> tuple[float, list[int]]:
        """An epoch: the sum of the losses, and the ratings by thread."""
        most = self.threads if self.contest.open else self.winner
        losses, done = np.zeros(self.layout.chunks), np.zeros(most, np.int64)
        for part, by_all in self.contest.parts(order):
            threads = self.threads if by_all else 1
            for first, stop in self.layout.rounds(len(part)):
                done[:threads] += self._chunks(part, lrs, key, losses, first, stop, threads)
        return float(losses.sum()), done.tolist()  # summed by chunk, whoever did it

    def _chunks(self, order: Any, lrs: Any, key: int, losses: Any, first: int, stop: int, threads: int) -> list[int]:
        """Do the chunks order[first:stop]; the ratings by thread."""
        work = Work(order, stop, np.array([first]), self.layout.bounds, lrs, losses)
        users, items = self.tables
        tables = Tables(users.reshape(-1), items.reshape(-1), np.uintp(users.shape[1]))
        layout, step = self.layout, self.step
        if self.rivals is None:
            return pool(threads).run(
                lambda thread: squared(work, tables, step, layout.users, layout.items, layout.ratings, layout.weights)
            )
        rivals = self.rivals._replace(key=np.uint64(key))
        drawn = np.empty((threads, 4 * AHEAD), np.uint32)  # no cache line has two threads' draws
        return pool(threads).run(
            lambda thread: bpr(work, tables, step, layout.users, layout.items, layout.weights, rivals, drawn[thread])
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
        if not self._patience or score is None:
            return
        self.waited += 1
        if score > self.score:
            self.score, self.waited, self.tables = score, 0, self._copies()

    @property
    def over(self) -> bool:
        return 0 < self._patience <= self.waited
