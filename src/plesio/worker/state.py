"""A worker's place in the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from weakref import ref

import torch
from torch.optim import Optimizer

from plesio.attachments import Halves
from plesio.core.events import Whereabouts
from plesio.protocol.worker import Beginning
from plesio.worker.randomness.draws import OwnDraws
from plesio.worker.randomness.seeding import seed_step, step_seed

LEAVES = "the worker leaves"


@dataclass(slots=True)
class WorkerState:
    """What the worker knows of its place in the run as of its last exchange.

    Attributes:
        loss: the last number that the training function logged as "loss"; of a device, the last that was read.
        before: contributions of this worker before the run was resumed.
        steps_before, samples_before, batches_before: local steps in those, samples, and leased batches.
        attachments: see `plesio.attachments`.
        number: the contribution under way, counted from the beginning of this process.
        draws: a lone worker's random sources, which are not seeded anew; None: there are, or may be, other workers.
        parts: which slice of each batch this process takes, of how many (`plesio.worker.island`).
        together: how many batches each step takes: one for each process of an island that all-reduces; else it takes one.
        epochs: how many it asked data of; stepped: batches of the contribution under way that steps were taken on.
        told: this process was told to leave the run; leaving: the worker is to, as soon as its step is made.
        parts_now: it has made that; the loop hears of it when it wants another batch, or steps again.
        early: so its training function did not come to its end.
        left_here: in a replay, whether it left at this point.
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
    number: int = 0
    parts: tuple[int, int] = (0, 1)
    together: int = 1
    epochs: int = 0
    stepped: int = 0
    attachments: Halves = field(default_factory=Halves)
    told: bool = False
    leaving: bool = False
    parts_now: bool = False
    early: bool = False
    left_here: Callable[[], bool] | None = None

    def leaves(self) -> bool:
        """Whether the worker leaves before its next step, as if its training function were over."""
        self.leaving = self.leaving or (self.left_here is not None and self.left_here())
        return self.leaving

    def resumed(self, told: Beginning) -> None:
        """What this worker had made before."""
        self.before, self.steps_before, self.samples_before = told.contributions, told.steps, told.samples
        self.batches_before = told.batches

    def trained_since(self, optimizer: Optimizer, steps_only: bool = False) -> Callable[[], bool]:
        """The result tells whether a step, also one called off, or (unless `steps_only`) a backward pass came since this call."""
        parameters: list[torch.Tensor] = [one for group in optimizer.param_groups for one in group["params"]]
        before = [None if one.grad is None else (ref(one.grad), one.grad._version) for one in parameters]
        step = self.steps + self.discarded

        def left_a_gradient(parameter: torch.Tensor, then: tuple[ref[torch.Tensor], int] | None) -> bool:
            now = parameter.grad
            return now is not None and (then is None or then[0]() is not now or then[1] != now._version)

        def trained() -> bool:
            stepped = self.steps + self.discarded != step
            return stepped or (not steps_only and any(map(left_a_gradient, parameters, before)))

        return trained

    def at(self, batches: int, asks: bool) -> Whereabouts:
        """Where in its loop it is, with so many `batches` in the contribution under way."""
        return Whereabouts(self.steps, self.epochs, max(0, batches - self.stepped), asks)

    def begin(self, number: int) -> None:
        """Contribution `number` begins, with other random numbers than after its first batch."""
        self.number, self.stepped = number, 0
        if self.draws is None:
            seed_step(*self._seeded_as, ~(self.before + number))

    def begins(self, batches: int) -> bool:
        """Whether what is seeded begins with the next batch, after so many of the contribution under way: the contribution; or
        the step, where it depends on the time how many steps are a contribution."""
        return batches == (self.stepped if self.together > 1 else 0)

    def reseed(self) -> None:
        """Its first batch is taken: its random numbers do not depend on what was drawn before."""
        if self.draws is None:
            seed_step(*self._seeded_as, self.before + self.number)

    @property
    def _seeded_as(self) -> tuple[int, int]:
        """The seed, and as which worker. Processes that take other slices of a batch draw other numbers; those that compute on
        the same one draw alike; those that all-reduce draw as workers of one process each do."""
        part, _ = self.parts
        if self.together > 1:
            return self.seed, part
        return step_seed(self.seed, part, 0) if part else self.seed, self.worker
