"""What a worker does at a step of its optimizer: `ServerExchange` pushes to the server and waits for its answer.

Where nobody is asked, see `plesio.worker.exchanges.shared_memory` (shared memory) and `plesio.worker.exchanges.all_reduce`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Protocol

from torch.optim import Optimizer

from plesio.core.events import Verdict
from plesio.errors import StepCancelled, StopRun
from plesio.faults import Pace
from plesio.protocol.notes import A, Beginning, Contribution, DroppedStep, Farewell, GoOn, Note
from plesio.strategy import Strategy
from plesio.strategy.answers import Every, Gradient
from plesio.tensors.optimizer_spec import Groups, packed, settings_of
from plesio.warn import warn_kept_back, warn_not_finite, warn_overwritten, warn_unsent
from plesio.worker.replica import Replica
from plesio.worker.seeding import seed_step

REPORT_S = 0.05
"""How often a worker that asks nobody tells what it did."""


class Timer(Protocol):
    """How long steps last, and what time it is."""

    def rest(self, sleep: Callable[[float], object]) -> None:
        """Let pass what the step is short of."""
        ...

    def begin(self) -> None:
        """The next step begins."""
        ...

    def now_s(self) -> float:
        """The time."""
        ...


class Pacer:
    """Makes steps last: the stand-in for an accelerator, and the fault of a slow worker."""

    def __init__(self, pace: Pace | None, factor: float, rng: random.Random) -> None:
        self._pace = pace
        self._factor = factor
        self._rng = rng
        self.started_s = time.monotonic()

    def rest(self, sleep: Callable[[float], object]) -> None:
        """Sleep for what the step is short of."""
        if self._pace is None and self._factor == 1.0:
            return
        spent_s = time.monotonic() - self.started_s
        least_s = self._pace.draw(self._rng) if self._pace else 0.0
        short_s = max(spent_s, least_s) * self._factor - spent_s
        if short_s > 0:
            sleep(short_s)

    def begin(self) -> None:
        """The next step begins."""
        self.started_s = time.monotonic()

    def now_s(self) -> float:
        """The time."""
        return time.monotonic()


@dataclass(slots=True)
class Standing:
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


class Exchange(Protocol):
    """What happens between a worker and the others."""

    cancels: bool
    local: bool
    """Whether the user's optimizer steps in this process, with the state it has here."""

    def begin(self) -> None:
        """Wait for the beginning."""
        ...

    def step(self) -> None:
        """One step of the training loop."""
        ...

    def cancelled(self) -> bool:
        """Whether the step under way no longer counts."""
        ...

    def abandon(self) -> None:
        """Drop it."""
        ...

    def report(self) -> None:
        """Tell the server what was done without it."""
        ...

    def end(self) -> None:
        """The training function returned."""
        ...


class WithoutServer:
    """What exchanges without a server have in common: the optimizer steps in the worker, and nobody calls work off."""

    cancels = False
    local = True

    def cancelled(self) -> bool:
        """Never."""
        return False

    def abandon(self) -> None:
        """Never asked for."""
        raise StepCancelled("nobody calls work off without a server")


class Used:
    """What the loop used since last asked: call it for (batches, samples), which begins again.

    `looks` counts how often it was looked since then whether the step still counts; `told` is the first that said no.
    """

    __slots__ = ("batches", "looks", "samples", "told")

    def __init__(self) -> None:
        self.batches = self.samples = self.looks = self.told = 0

    def __call__(self) -> tuple[int, int]:
        taken = self.batches, self.samples
        self.batches = self.samples = self.looks = self.told = 0
        return taken


class Bell(Protocol):
    """A worker's line to the server, as `plesio.transport.doorbell.Doorbell`."""

    def send(self, note: Note) -> None:
        """Tell the server."""
        ...

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = ...
    ) -> A:
        """Wait for the next answer; `meanwhile` is done while it is waited for, or then if others run in this process."""
        ...

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer lies there."""
        ...


class ServerExchange:
    """Through the server: push, wait for the answer, go on from what it says."""

    def __init__(
        self,
        strategy: Strategy,
        standing: Standing,
        optimizer: Optimizer,
        replica: Replica,
        doorbell: Bell,
        pacer: Timer,
        used: Used,
        timeout_s: float,
        every: Every | None = None,
    ) -> None:
        self._every = every or strategy.every
        self.local = not isinstance(strategy.send, Gradient)
        self.cancels = strategy.release.cancel_late
        self._standing = standing
        self._optimizer = optimizer
        self._replica = replica
        self._doorbell = doorbell
        self._pacer = pacer
        self._used = used
        self._timeout_s = timeout_s
        self._number = 0
        self._steps = 0
        self._finite = True  # the gradients of the contribution under way
        self._exchanged_s = 0.0
        self._sent: Groups | None = None

    def begin(self) -> None:
        """Wait for the first version."""
        beginning = self._doorbell.answer(Beginning, self._timeout_s, 0, 0)
        self._standing.before, self._standing.steps_before = beginning.contributions, beginning.steps
        self._next()
        self._go_on(beginning)
        self._pacer.begin()

    def step(self) -> None:
        """One step of the training loop."""
        if self._standing.stopped:
            raise StopRun("the run is over")
        if self.local:
            self._step_here()
        self._standing.steps += 1
        self._steps += 1
        self._pacer.rest(self._doorbell.waiting if self.cancels else time.sleep)
        if self.cancels and self._called_off():
            self.abandon()
        elif self._every.due(self._steps, self._pacer.now_s() - self._exchanged_s):
            self._push()
        self._pacer.begin()

    def _step_here(self) -> None:
        """Step, but not by a NaN, which the optimizer's state would keep for good: this contribution will not count then."""
        if self._replica.check_gradients():
            self._optimizer.step()
        else:
            self._finite = False

    def cancelled(self) -> bool:
        """Whether the step under way no longer counts."""
        if not self.cancels:
            return False
        self._used.looks += 1
        if self._doorbell.waiting():
            self._used.told = self._used.told or self._used.looks
        return self._used.told > 0

    def _called_off(self) -> bool:
        """The step is done: whether it was in vain. (A replay tells this look from those inside the step by its number.)"""
        self._used.looks = 0
        return self._doorbell.waiting()

    def abandon(self) -> None:
        """Drop the step that was called off, with its gradients so far, and go on from the newer version."""
        told = self._used.told
        batches, _ = self._used()
        if told:  # during the step; after it, the loop deals with its gradients as always
            self._replica.drop_gradients()
        answer = self._doorbell.answer(GoOn, self._timeout_s, self._number, self._standing.version)
        self._doorbell.send(DroppedStep(batches, told))
        self._next()
        self._adopt(answer)
        self._pacer.begin()

    def _push(self) -> None:
        finite = self._replica.fill_slot() and self._finite
        batches, samples = self._used()
        self._doorbell.send(
            Contribution(
                number=self._number,
                steps=self._steps,
                samples=samples,
                batches=batches,
                finite=finite,
                missing=self._replica.missing,
                settings=self._changed_groups(),
                ready_s=self._pacer.now_s(),
                loss=self._standing.loss,
            )
        )
        self._adopt(self._doorbell.answer(GoOn, self._timeout_s, self._number, self._standing.version, self._next))

    def _next(self) -> None:
        """The next contribution begins. What is random in it is known before the answer: seeding takes long enough to tell."""
        self._number += 1
        self._standing.begin(self._number)

    def _changed_groups(self) -> bytes:
        """The hyper-parameters, where the user or a scheduler changed them since they were last sent."""
        if self.local:
            return b""
        if self._optimizer.param_groups == self._sent:
            return b""
        self._sent = settings_of(self._optimizer)
        return packed(self._optimizer)

    def _adopt(self, answer: GoOn) -> None:
        self._go_on(answer)
        standing = self._standing
        standing.verdict, standing.staleness = answer.verdict, answer.staleness
        if answer.verdict is Verdict.CANCELLED:
            self._sent = None  # the settings that went with it may have got nowhere
        if answer.verdict is not Verdict.TAKEN:
            standing.discarded += 1
        if answer.verdict is Verdict.NOT_FINITE:
            warn_not_finite(standing.worker)

    def _go_on(self, answer: Beginning | GoOn) -> None:
        self._replica.adopt(answer.buffer)
        self._standing.version = answer.version
        self._standing.stopped = self._standing.stopped or answer.stop
        self._steps = 0
        self._finite = True
        self._exchanged_s = self._pacer.now_s()

    def report(self) -> None:
        """Nothing is done without the server."""

    def end(self) -> None:
        """The training function returned: local steps that were not sent yet are."""
        if self.local and self._steps and not self._standing.stopped:
            self._push()
        if self._standing.warns_at_the_end() and (unsent := self._replica.unsent()):
            warn_unsent(unsent)  # before the farewell: from then on that version may be overwritten
        if self._standing.warns_at_the_end() and (overwritten := self._replica.overwritten()):
            warn_overwritten(overwritten)
        self._doorbell.send(Farewell())
        if self._standing.worker == 0 and (rewritten := self._replica.rewritten()):
            warn_kept_back(rewritten)

    def let_go(self) -> None:
        """The worker is over, and its process goes on: who still holds its model or this is not to hold the run's memory."""
        self._standing.stopped = True
        self._replica.drop_gradients()
        del self._replica
