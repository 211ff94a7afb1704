"""What holds of a worker's exchanges through the server: as its strategy says, phase after phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.tensors.carrying import States
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.several import parts_of
from plesio.transport.held import Held
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.replicas.own import OwnState
from plesio.worker.replicas.parameters import ParameterReplica
from plesio.worker.replicas.replica import Replica
from plesio.worker.row_exchange import RowExchange


@dataclass(eq=False)
class FollowingExchange(Exchange):
    """An exchange as the phase of `strategy` says that the run is in.

    Attributes:
        every: overrides the strategy's.
        held: where checkpoints find what this worker holds.
        goes_on: whether the worker goes on after the contribution that it is about to send; None: never.
        brought: takes the state that was sent for the optimizer here, where `held` is on another host.
        replicate: makes the replica for another phase.
    """

    strategy: Strategy
    every: Every | None = None
    held: Held | None = None
    goes_on: Callable[[], bool] | None = None
    brought: Callable[[], States] | None = field(default=None, kw_only=True)
    replicate: Callable[[Strategy], Replica] | None = field(default=None, kw_only=True)
    counts = True

    def __post_init__(self) -> None:
        self.phases = self.strategy.phases
        self.phase = 0
        self.may_cancel = any(one.release.cancel_late for one in self.phases)
        self.by_client = self.strategy.every.by_client
        self.private, self.sums = self.strategy.send.privacy is not None, self.strategy.send.control
        self.late = self.goes_on is not None
        self._fragments = self.strategy.send.fragments
        self._sent: Groups | None = None  # the hyper-parameters, as the server has them

    def _follow(self, strategy: Strategy) -> None:
        """Exchange as this one says, with a replica that is made for it."""
        self.strategy = strategy
        self._every = self.every if self.every is not None and strategy.send.stepped else strategy.every
        self._each_step = self._every.each_step and not self.by_client
        self.local = not strategy.steps_at_server
        self.in_rounds = strategy.gather.in_rounds
        self.in_lock_step = strategy.in_lock_step and self._each_step
        self.weighs = strategy.weigh.normalised and not self.by_client
        self._proximal = strategy.every.proximal
        self.cancels = strategy.release.cancel_late
        self._is_usual = not self.late and self._fragments == 1 and self.rows is None  # then nothing is said aside
        held, replica = self.held, self.replica
        own = self.state, self.optimizer, replica, self.local, self._may_wait(strategy)
        self._own = OwnState(held, *own) if held is not None else None
        keeps = self.local or strategy.keeps_own or self.state.draws is not None
        self._leaves = self._own is not None and keeps

    def _may_wait(self, strategy: Strategy) -> bool:
        """Whether what this worker holds costs much to leave (it is on a device, or of each step), and is still as it was when an
        exchange is over."""
        costs = strategy.keeps_own and (not strategy.send.stepped or not self.replica.tensors[0].is_cpu)
        changes = self.late or self.by_client or strategy.adopt.blends or self._fragments > 1
        wanted = strategy.every.among_ranks or len(self.phases) > 1  # by others than checkpoints
        return costs and not changes and not wanted

    def has_tables(self, rows: RowExchange) -> None:
        """The model has some."""
        self.rows, self._is_usual = rows, False

    def _turn_to(self, phase: int) -> None:
        """Another phase begins: the optimizer goes on where that has it step, and the model from the version to come."""
        if not self.local:
            self.replica.drop_gradients(sent=True)  # they may lie in the slot
        self.replica.close()
        self.phase, self._sent = phase, None
        assert self.replicate is not None, "whoever may turn can make replicas"
        self.replica = self.replicate(self.phases[phase])
        if self._part is not None:
            self.replica.turn_to(self._part)
        self._follow(self.phases[phase])
        if not self.local:
            self._forget_optimizer()

    def _takes_up(self, number: int) -> bool:
        """Whether this worker goes on with what it had of its own after contribution `number`."""
        if self.local and self.brought is not None:
            self.optimizer.state.update(self.brought())
        return self._own is not None and self._own.take_up(number)

    def _forget_optimizer(self) -> None:
        for part in parts_of(self.optimizer):
            part.state.clear()

    @property
    def _stepped(self) -> ParameterReplica:
        assert isinstance(self.replica, ParameterReplica), "the optimizer steps in this worker"
        return self.replica
