"""A worker's place in the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan

from plesio.core.events import Whereabouts
from plesio.protocol.worker import Beginning
from plesio.worker.draws import OwnDraws
from plesio.worker.seeding import seed_step


@dataclass(slots=True)
class WorkerState:
    """What the worker knows of its place in the run as of its last exchange.

    Attributes:
        loss: the last number that the training function logged as "loss".
        before: contributions of this worker before the run was resumed.
        steps_before, samples_before, batches_before: local steps in those, samples, and leased batches.
        rate_before: the learning rate before the run was resumed.
        calls: how often schedules were called, before and since.
        counters: what all workers counted together, as of the last exchange; counted: what this one added since.
        number: the contribution under way, counted from the beginning of this process.
        draws: a lone worker's random sources, which are not seeded anew; None: there are, or may be, other workers.
        epochs: how many it asked data of; stepped: batches of the contribution under way that steps were taken on.
    """

    worker: int
    seed: int
    draws: OwnDraws | None = None
    version: int = 0
    staleness: int = 0
    discarded: int = 0
    steps: int = 0
    stopped: bool = False
    loss: float = nan
    before: int = 0
    steps_before: int = 0
    samples_before: int = 0
    batches_before: int = 0
    calls: int = 0
    rate_before: float = 0.0
    number: int = 0
    epochs: int = 0
    stepped: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)

    def resumed(self, told: Beginning) -> None:
        """What this worker had made before."""
        self.before, self.steps_before, self.samples_before = told.contributions, told.steps, told.samples
        self.batches_before, self.calls, self.rate_before = told.batches, told.calls, told.rate

    def take_counted(self) -> dict[str, int]:
        """What was added to shared counters: it is told now."""
        if not self.counted:
            return {}
        counted = {name: amount for name, amount in self.counted.items() if amount}
        self.counted.update(dict.fromkeys(counted, 0))
        self.counters |= {name: self.counters.get(name, 0) + amount for name, amount in counted.items()}
        return counted

    def heard_of(self, counters: dict[str, int]) -> None:
        """These are the counters; an answer that crossed what this worker sent lacks that."""
        self.counters |= {name: max(value, self.counters.get(name, 0)) for name, value in counters.items()}

    def concluded(self) -> int:
        """A number that changes with each step, also with one that was called off."""
        return self.steps + self.discarded

    def at(self, batches: int, asks: bool) -> Whereabouts:
        """Where in its loop it is, with so many `batches` in the contribution under way."""
        return Whereabouts(self.steps, self.epochs, max(0, batches - self.stepped), asks)

    def begin(self, number: int) -> None:
        """Contribution `number` begins, with other random numbers than after its first batch."""
        self.number, self.stepped = number, 0
        if self.draws is None:
            seed_step(self.seed, self.worker, ~(self.before + number))

    def reseed(self) -> None:
        """Its first batch is taken: its random numbers do not depend on what was drawn before."""
        if self.draws is None:
            seed_step(self.seed, self.worker, self.before + self.number)
