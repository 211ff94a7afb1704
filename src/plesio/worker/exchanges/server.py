"""Through the server: a step of the worker's optimizer sends a contribution and waits for the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from plesio.core.events import Verdict
from plesio.errors import ConfigurationError, ServerLostError, StopRun
from plesio.protocol.worker import Beginning, Contribution, DroppedStep, Farewell, GoOn
from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.tensors.optimizer_spec import Groups, packed, settings_of
from plesio.tensors.several import parts_of
from plesio.tensors.tensor_set import bits
from plesio.transport.held import Held
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.replicas.own import OwnState
from plesio.worker.replicas.parameters import ParameterReplica
from plesio.worker.warn import warn, warn_at_end, warn_not_finite


class SeatLostError(ServerLostError):
    """A worker of another host was away for so long that its seat was given up; `rejoin` makes it take part again."""

    def __init__(self, rejoin: Callable[[], Beginning]) -> None:
        super().__init__("the seat was given up")
        super().__init__(
            "the connection with the run's head was lost for so long that this worker was given up; where workers fold among "
            "themselves none comes back"
        )
        self.rejoin = rejoin


@dataclass(eq=False)
class ServerExchange(Exchange):
    """Send a contribution, wait for the answer, go on from the version it names; `every` overrides the strategy's, and `held` is
    where checkpoints find what this worker holds."""

    strategy: Strategy
    every: Every | None = None
    held: Held | None = None
    counts = True

    def __post_init__(self) -> None:
        self._every = self.every or self.strategy.every
        self.local = not self.strategy.steps_at_server
        self.by_client = self.strategy.every.by_client
        self.in_rounds = self.strategy.gather.in_rounds
        self._proximal = self.strategy.every.proximal
        self.cancels = self.strategy.release.cancel_late
        self.private = self.strategy.send.privacy is not None
        self._number = 0
        self._steps = self._granted = self._before_client = 0
        self.taken = True  # whether the last contribution counted
        self.between_clients = False  # `LeasedClients` says so
        self._says_samples = False
        self._finite = True  # the gradients of the contribution under way
        self._exchanged_s = 0.0
        self._sent: Groups | None = None
        self._own = (
            OwnState(self.held, self.state, self.optimizer, self.replica, self.local) if self.held is not None else None
        )

    def begin(self, lost: SeatLostError | None = None) -> None:
        """Go on from the version that the server gives: at the start and, any number of times, when the seat was `lost`."""
        try:
            beginning = self.doorbell.answer(Beginning, self.timeout_s, 0, 0) if lost is None else lost.rejoin()
        except SeatLostError as again:
            beginning = again.rejoin()
        if lost is not None:
            self._drop()
        self.state.resumed(beginning)
        self._number = 0
        self._next()
        self._go_on(beginning, anew=self._own is None or not self._own.take_up())
        self.pacer.begin()

    def _drop(self) -> None:
        """With the seat the step under way is lost, the data, and what an optimizer here holds."""
        self.used.lose()
        self.replica.drop_gradients()
        if self.local:
            for part in parts_of(self.optimizer):
                part.state.clear()
        self._sent = None
        self.state.riders.lost()
        self.taken = False
        self.state.discarded += 1

    def step(self) -> None:
        if self.state.stopped:
            raise StopRun("the run is over")
        if self.local:
            self._step_here()
        else:
            self.replica.writes.refuse(self.strategy.name, self.lets_writes_go)
        self.state.steps += 1
        self._steps += 1
        self.pacer.rest(self.doorbell.waiting if self.cancels else time.sleep)
        if self.cancels and self._called_off():
            self.abandon()
        elif not self.by_client and self._every.due(
            self._steps, self.pacer.now_s() - self._exchanged_s, self.state.version, self._granted
        ):
            self._push()
        self.state.stepped = self.used.batches
        self.pacer.begin()

    @property
    def _stepped(self) -> ParameterReplica:
        assert isinstance(self.replica, ParameterReplica), "the optimizer steps in this worker"
        return self.replica

    def contribute(self, samples: int | None = None) -> None:
        if not self.local:
            super().contribute()
        if self.state.stopped:
            raise StopRun("the run is over")
        if samples is not None:
            if samples and not self._steps:
                warn(
                    f"worker.contribute(samples={samples}) without an optimizer.step() since the last: it counts for nothing"
                )
            self.used.samples, self.used.said, self._says_samples = samples, 0, True
            self._steps = self._steps if samples else 0  # no samples are no work
        version = self.state.version
        self._push()
        self.pacer.begin()
        if samples == 0 and self.in_rounds and self.taken and not self.state.stopped and self.state.version == version:
            raise ConfigurationError(
                "worker.contribute(samples=0): nobody in this round trained on any sample, and nothing counts; let the loop end "
                "where there are no data left"
            )

    def make_way(self) -> bool:
        if self.state.stopped or (self.used.batches and not self.local):
            return False
        self._push()  # what was trained since the last one, or nothing
        self.pacer.begin()
        return True

    def begin_client(self) -> None:
        """The model is the version's again, and the optimizer has no state."""
        self.optimizer.state.clear()
        self._stepped.begin_client()
        self.replica.drop_gradients()
        self._finite, self._before_client = True, self._steps
        self.between_clients = False

    @property
    def client_steps(self) -> int:
        """How many steps the client has taken."""
        return self._steps - self._before_client

    def end_client(self, samples: int) -> bool:
        """Keep what a client moved for the round; whether that is finite, and counts."""
        privacy = self.strategy.send.privacy
        weight, clip = (samples, None) if privacy is None else (1, privacy.clip)
        if self._finite and self._stepped.add_client(weight, clip):
            return True
        self.leave_out()
        return False

    def leave_out(self) -> None:
        """The client counts for nothing."""
        self._steps = self._before_client

    def end_round(self, release: bool) -> None:
        """Exchange what the clients moved. Under privacy a round that is a `release` makes a version of noise if nobody moved."""
        privacy = self.strategy.send.privacy
        self._stepped.take_clients(None if privacy is None else privacy.per_round)
        self._finite = True
        if privacy is not None and release:
            self._steps = max(1, self._steps)
        self.contribute()

    def _step_here(self) -> None:
        """Step, but not by a NaN, which would stay in the optimizer's state: then this contribution will not count."""
        if self.between_clients:
            raise ConfigurationError(
                "optimizer.step() outside of a client's turn: under ps.Clients a step is of the client that the loop is at; "
                "step inside `for client in clients:`, before the next one is taken"
            )
        if self._closure is not None:
            if self._proximal:
                raise ConfigurationError(
                    "a proximal term is added to gradients, and step(closure) computes its own: take them before"
                )
            self.move()
            self.replica.note_gradients()
        elif self.replica.check_gradients():
            if self._proximal:
                self._stepped.pull_back(self._proximal)
            self.move()
        else:
            self._finite = False

    def cancelled(self) -> bool:
        if not self.cancels:
            return False
        self.used.checks += 1
        if self.doorbell.waiting():
            self.used.cancelled_at = self.used.cancelled_at or self.used.checks
        return self.used.cancelled_at > 0

    def _called_off(self) -> bool:
        """Whether the step was called off by the time it is done. (A replay knows this check by its number, 0.)"""
        self.used.checks = 0
        return self.doorbell.waiting()

    def abandon(self) -> None:
        """Drop the step that was called off, with its gradients, and go on from the newer version."""
        cancelled_at = self.used.cancelled_at
        batches, _ = self.used()
        if cancelled_at:  # during the step; after it, the loop deals with its gradients as always
            self.replica.drop_gradients()
        try:
            answer = self.doorbell.answer(GoOn, self.timeout_s, self._number, self.state.version)
        except SeatLostError as lost:
            self.begin(lost)
            return
        self._keep_own()
        self.doorbell.send(DroppedStep(batches, cancelled_at, worked_s=self._worked_s()))
        self._next()
        self._adopt(answer)
        self.pacer.begin()

    def _push(self) -> None:
        finite = self._finite and self._fill_slot()  # else nothing of it is to be remembered
        batches, samples = self.used()
        self._keep_own()
        self.doorbell.send(
            Contribution(
                number=self._number,
                steps=self._steps,
                samples=samples,
                batches=batches,
                finite=finite,
                missing=self.replica.missing,
                absent=bits(self.replica.absent) if self.replica.absent else b"",
                rows=self.replica.rows,
                optimizer=self._place_of_part(),
                settings=self._changed_groups(),
                riders=self.state.riders.take(self),
                worked_s=self._worked_s(),
                loss=self.state.loss,
            )
        )
        try:
            self._adopt(self.doorbell.answer(GoOn, self.timeout_s, self._number, self.state.version, self._next))
        except SeatLostError as lost:
            self.begin(lost)

    def _fill_slot(self) -> bool:
        return not self._steps or self.replica.fill_slot()

    def _keep_own(self) -> None:
        """Leave what this worker holds of its own, for checkpoints."""
        if self._own is not None:
            self._own.keep(self._number)

    def _place_of_part(self) -> int:
        return parts_of(self.optimizer).index(self._part) if self._part is not None else 0

    def _worked_s(self) -> float:
        """The time since the last answer, but for what went by waiting for data: that is exchange."""
        return max(0.0, self.pacer.now_s() - self._exchanged_s - self.used.waited_s)

    def _next(self) -> None:
        """The next contribution begins. It is seeded while the answer is on its way, for that takes a while."""
        self._number += 1
        self.state.begin(self._number)

    def _changed_groups(self) -> bytes:
        """The hyper-parameters, if the user or a scheduler changed them since they were last sent."""
        if self.local or self.optimizer.param_groups == self._sent:
            return b""
        self._sent = settings_of(self.optimizer)
        return packed(self.optimizer)

    def _adopt(self, answer: GoOn) -> None:
        self._go_on(answer)
        state = self.state
        state.staleness, self.taken = answer.staleness, answer.verdict is Verdict.TAKEN
        if answer.verdict is Verdict.CANCELLED:
            self._sent = None  # what was sent with it may be lost
            self.state.riders.lost()
        if answer.verdict is not Verdict.TAKEN:
            state.discarded += 1
        if answer.verdict is Verdict.NOT_FINITE:
            warn_not_finite(state.worker)

    def _go_on(self, answer: Beginning | GoOn, anew: bool = False) -> None:
        self._exchanged_s = self.pacer.now_s()
        self.used.waited_s = 0.0
        self.replica.adopt(self.doorbell.shown(self.replica.ring), anew)
        self.state.version = answer.version
        if answer.riders:
            self.state.riders.hear(answer.riders)
        self.state.stopped = self.state.stopped or answer.stop
        self._steps = 0
        self._granted = answer.steps_granted
        self._finite = True

    def end(self) -> None:
        """The training function returned: send the local steps that were not sent yet."""
        if self.local and self._steps and not self.state.stopped:
            if self._says_samples or (self.by_client and self._number == 1):
                warn_at_end(
                    f"worker {self.state.worker} did not contribute its last {self._steps} steps before it ended: under "
                    f"{self.strategy.name} a loop over its own data calls worker.contribute(samples=...) once a round; or give "
                    "prepare ps.Clients(...)"
                )
            if not self._says_samples:  # else nobody says what they weigh
                self._push()
        if self.state.worker == 0:  # before the farewell: from then on that version may be overwritten
            self.replica.writes.warn(self.state.stopped)
        self.doorbell.send(Farewell())

    def let_go(self) -> None:
        """The worker is over and its process goes on: whoever still holds its model must not hold the run's memory."""
        self.state.stopped = True
        self.replica.drop_gradients()
        del self.replica
