"""A worker's place in the run."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from plesio.core.events import Verdict
from plesio.worker.seeding import seed_step


@dataclass(slots=True)
class WorkerState:
    """What the worker knows of its place in the run, after its last exchange."""

    worker: int
    seed: int
    version: int = 0
    staleness: int = 0
    verdict: Verdict = Verdict.TAKEN
    discarded: int = 0
    steps: int = 0
    stopped: bool = False
    loss: float = nan
    """What the training function last logged under that name."""

    before: int = 0
    """Contributions it made before the run was resumed,"""
    steps_before: int = 0
    """and the local steps in them."""
    number: int = 0
    """The contribution it works on, counted from the beginning of this process."""

    def concluded(self) -> int:
        """A number that is another one after each step, also after one that was called off."""
        return self.steps + self.discarded

    def warns_at_the_end(self) -> bool:
        """Whether this is worker 0, and its training function was not ended by the run's stop."""
        return self.worker == 0 and not self.stopped

    def begin(self, number: int) -> None:
        """Contribution `number` begins; what is drawn before its first batch is not drawn again with that."""
        self.number = number
        seed_step(self.seed, self.worker, ~(self.before + number))

    def reseed(self) -> None:
        """With its first batch: what is random in a contribution does not depend on what went before."""
        seed_step(self.seed, self.worker, self.before + self.number)
