"""Through the server: a step of the worker's optimizer sends a contribution and waits for the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from torch.optim import Optimizer

from plesio.core.events import Verdict
from plesio.errors import StopRun
from plesio.protocol.worker import A, Beginning, Contribution, DroppedStep, Farewell, FromWorker, GoOn, Settings
from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.tensors.optimizer_spec import Groups, packed, settings_of
from plesio.worker.data_use import DataUse
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.pacer import Timer
from plesio.worker.replica import Replica
from plesio.worker.state import WorkerState
from plesio.worker.warn import warn_not_finite


class Bell(Protocol):
    """A worker's line to the server, as `plesio.transport.doorbell.Doorbell`."""

    buffer: int

    def send(self, message: FromWorker) -> None:
        """Tell the server."""
        ...

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = ...
    ) -> A:
        """Wait for the next answer, and call `meanwhile`: while waiting, or after it if workers share this process."""
        ...

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer has come."""
        ...


class ServerExchange(Exchange):
    """Send a contribution, wait for the answer, go on from the version it names."""

    def __init__(
        self,
        strategy: Strategy,
        state: WorkerState,
        optimizer: Optimizer,
        replica: Replica,
        doorbell: Bell,
        pacer: Timer,
        used: DataUse,
        timeout_s: float,
        every: Every | None = None,
    ) -> None:
        self._every = every or strategy.every
        self.local = strategy.send.stepped
        self.cancels = strategy.release.cancel_late
        self._state = state
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
        self._state.before, self._state.steps_before = beginning.contributions, beginning.steps
        self._next()
        self._go_on(beginning)
        self._pacer.begin()

    def step(self) -> None:
        """One step of the training loop."""
        if self._state.stopped:
            raise StopRun("the run is over")
        if self.local:
            self._step_here()
        self._state.steps += 1
        self._steps += 1
        self._pacer.rest(self._doorbell.waiting if self.cancels else time.sleep)
        if self.cancels and self._called_off():
            self.abandon()
        elif self._every.due(self._steps, self._pacer.now_s() - self._exchanged_s):
            self._push()
        self._pacer.begin()

    def _step_here(self) -> None:
        """Step, but not by a NaN, which would stay in the optimizer's state: then this contribution will not count."""
        if self._replica.check_gradients():
            self._optimizer.step()
        else:
            self._finite = False

    def cancelled(self) -> bool:
        """Whether the step under way no longer counts."""
        if not self.cancels:
            return False
        self._used.checks += 1
        if self._doorbell.waiting():
            self._used.cancelled_at = self._used.cancelled_at or self._used.checks
        return self._used.cancelled_at > 0

    def _called_off(self) -> bool:
        """Whether the step was called off by the time it is done. (A replay knows this check by its number, 0.)"""
        self._used.checks = 0
        return self._doorbell.waiting()

    def abandon(self) -> None:
        """Drop the step that was called off, with its gradients, and go on from the newer version."""
        cancelled_at = self._used.cancelled_at
        batches, _ = self._used()
        if cancelled_at:  # during the step; after it, the loop deals with its gradients as always
            self._replica.drop_gradients()
        answer = self._doorbell.answer(GoOn, self._timeout_s, self._number, self._state.version)
        self._doorbell.send(DroppedStep(batches, cancelled_at, worked_s=self._pacer.now_s() - self._exchanged_s))
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
                worked_s=self._pacer.now_s() - self._exchanged_s,
                loss=self._state.loss,
            )
        )
        self._adopt(self._doorbell.answer(GoOn, self._timeout_s, self._number, self._state.version, self._next))

    def _next(self) -> None:
        """The next contribution begins. It is seeded while the answer is on its way, for that takes a while."""
        self._number += 1
        self._state.begin(self._number)

    def _changed_groups(self) -> tuple[Settings, ...]:
        """The hyper-parameters, if the user or a scheduler changed them since they were last sent."""
        if self.local or self._optimizer.param_groups == self._sent:
            return ()
        self._sent = settings_of(self._optimizer)
        return (Settings(0, packed(self._optimizer)),)

    def _adopt(self, answer: GoOn) -> None:
        self._go_on(answer)
        state = self._state
        state.staleness = answer.staleness
        if answer.verdict is Verdict.CANCELLED:
            self._sent = None  # the settings sent with it may be lost
        if answer.verdict is not Verdict.TAKEN:
            state.discarded += 1
        if answer.verdict is Verdict.NOT_FINITE:
            warn_not_finite(state.worker)

    def _go_on(self, answer: Beginning | GoOn) -> None:
        self._exchanged_s = self._pacer.now_s()
        self._replica.adopt(self._doorbell.buffer)
        self._state.version = answer.version
        self._state.stopped = self._state.stopped or answer.stop
        self._steps = 0
        self._finite = True

    def end(self) -> None:
        """The training function returned: send the local steps that were not sent yet."""
        if self.local and self._steps and not self._state.stopped:
            self._push()
        if self._state.worker == 0:  # before the farewell: from then on that version may be overwritten
            self._replica.writes.warn(self._state.stopped)
        self._doorbell.send(Farewell())

    def let_go(self) -> None:
        """The worker is over and its process goes on: whoever still holds its model must not hold the run's memory."""
        self._state.stopped = True
        self._replica.drop_gradients()
        del self._replica
