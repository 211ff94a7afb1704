"""A worker's place in the run."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from plesio.protocol.worker import Beginning
from plesio.worker.seeding import seed_step


@dataclass(slots=True)
class WorkerState:
    """What the worker knows of its place in the run as of its last exchange.

    Attributes:
        loss: the last number that the training function logged as "loss".
        before: contributions of this worker before the run was resumed.
        steps_before, samples_before, batches_before: local steps in those, samples, and leased batches.
        calls: how often schedules were called, before and since.
        number: the contribution under way, counted from the beginning of this process.
    """

    worker: int
    seed: int
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
    number: int = 0

    def resumed(self, told: Beginning) -> None:
        """What this worker had made before."""
        self.before, self.steps_before, self.samples_before = told.contributions, told.steps, told.samples
        self.batches_before, self.calls = told.batches, told.calls

    def concluded(self) -> int:
        """A number that changes with each step, also with one that was called off."""
        return self.steps + self.discarded

    def begin(self, number: int) -> None:
        """Contribution `number` begins, with other random numbers than after its first batch."""
        self.number = number
        seed_step(self.seed, self.worker, ~(self.before + number))

    def reseed(self) -> None:
        """Its first batch is taken: its random numbers do not depend on what was drawn before."""
        seed_step(self.seed, self.worker, self.before + self.number)
