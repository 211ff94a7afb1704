"""What one run is to be: its strategy, its workers, and the faults that strike it one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import plesio as ps
from plesio.strategy import Strategy
from support.paced import BATCH, carrying, visiting, visiting_rows

SAMPLES, EPOCHS, PAUSE_S = 480, 3, 0.06
KILL_HEAD, FREEZE_HEAD, KILL_STANDBY, KILL_WORKER, CUT = (
    "head killed",
    "head frozen",
    "standby killed",
    "worker killed",
    "split",
)
KILLS = (KILL_HEAD, KILL_HEAD, KILL_HEAD, FREEZE_HEAD, KILL_STANDBY, KILL_WORKER)
SITES = 3
COUNTING = (ps.async_sgd("plain"), ps.sync_sgd())
"""Of these it is counted how often each sample is in the weights."""
OTHERS = (
    ps.async_sgd(),
    ps.async_sgd(codec="int8"),
    ps.sync_sgd(),
    ps.local_sgd(4),
    ps.diloco(4),
    ps.buffered(2),
    ps.first_of(2),
    ps.bounded_staleness(2),
)


@dataclass(frozen=True)
class Plan:
    """`counts`: the weights say how often each sample is in them, or the rows of a table do (`tables`). `places`: at which site
    the head, the standby (and those after it), and each worker are. Standbys take a version `every` so many, or (0) the log."""

    seed: int
    strategy: Strategy
    counts: bool
    tables: bool
    acknowledge: str
    workers: int
    faults: tuple[str, ...]
    places: tuple[int, ...]
    every: int

    @property
    def in_networks(self) -> bool:
        """Whether each site has a network of its own."""
        return CUT in self.faults

    def train(self, seen: Path) -> Callable[..., None]:
        """The training function."""
        how: dict[str, Any] = {"seen": seen, "samples": SAMPLES, "epochs": EPOCHS, "pause_s": PAUSE_S * self.workers}
        if self.tables:
            return partial(visiting_rows, **how)
        return partial(visiting, lr=float(self.workers), **how) if self.counts else partial(carrying, **how)

    @property
    def batches(self) -> int:
        return SAMPLES // BATCH * EPOCHS

    def __str__(self) -> str:
        name, faults = f"{self.strategy.name}{', tables' if self.tables else ''}", ", ".join(self.faults)
        acknowledge = f'acknowledge="{self.acknowledge}"{f", every {self.every} versions" if self.every else ""}'
        return f"{name}, {acknowledge}, {self.workers} workers, at {self.places}: {faults}"


def draw(seed: int, splits: bool) -> Plan:
    """`splits`: links are cut; else processes die or stand still."""
    rng = random.Random(seed)
    counts = rng.random() < 0.5
    strategy = rng.choice(COUNTING if counts else OTHERS)
    workers = rng.randint(2 if strategy.name in ("first_of(2)", "buffered(2)") else 1, 3)
    faults = tuple(CUT if splits and rng.random() < 0.8 else rng.choice(KILLS) for _ in range(rng.randint(2, 4)))
    places = tuple(rng.randrange(SITES) for _ in range(workers + 2))
    acknowledge = rng.choice(("head", "standby"))
    tables = counts and rng.random() < 0.5
    every = rng.randint(1, 9) if acknowledge == "head" and rng.random() < 0.3 else 0
    return Plan(seed, strategy, counts, tables, acknowledge, workers, faults, places, every)
