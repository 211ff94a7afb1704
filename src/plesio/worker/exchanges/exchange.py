"""What happens between a worker and the others: at the beginning, at each step of its optimizer, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from plesio.errors import ConfigurationError
from plesio.protocol.worker import A, FromWorker
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import Arena
from plesio.transport.ring import Ring, Shown
from plesio.worker.data.use import DataUse
from plesio.worker.pacer import Timer
from plesio.worker.replicas.replica import Replica
from plesio.worker.row_exchange import RowExchange
from plesio.worker.state import WorkerState


class Bell(Protocol):
    """A worker's line to the server, as `plesio.transport.doorbell.Doorbell`."""

    def shown(self, ring: Ring[Arena]) -> Shown[Arena]:
        """The version that the last answer named."""

    def send(self, message: FromWorker) -> None:
        """Tell the server."""

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = ...
    ) -> A:
        """Wait for the next answer, and call `meanwhile`: while waiting, or after it if workers share this process."""

    def waiting(self, timeout_s: float = 0.0) -> bool:
        """Whether an answer has come."""


@dataclass(eq=False)
class Exchange:
    """One way to exchange.

    Attributes:
        used: the data that the step under way took.
        timeout_s: how long to wait for anybody.
        weighs: whether an exchange counts by its samples; sends_in: the call of the loop that exchanges.
        in_lock_step: whether all workers wait for each other at every step, at the server.
        cancels: whether a step under way may be called off; `may_cancel`: in any phase of the run.
        local: whether the user's optimizer steps in this process, with the state it has here.
        counts: whether each exchange tells what all workers counted.
        by_client: whether clients' ends are what is exchanged at, not steps.
        private: whether what leaves this worker is noised; secure: the server sees it in a sum alone.
        sums: whether control variates travel, and what clients moved is added up.
        late: whether the worker goes on while an answer travels.
        rows: the model's tables, if it has any.
        shares_parameters: whether what one worker writes into its parameters is in everybody's.
        any_optimizer: whether optimizers that were not prepared may step, too.
        stepping: whether a step is under way.
        after_step: what is done to the weights after each step in this process.
        lets_writes_go: whether writes that a version replaces are only warned of.
        model: what the training loop is to call, if not what it gave to prepare.
    """

    state: WorkerState
    optimizer: Optimizer
    replica: Replica
    doorbell: Bell
    pacer: Timer
    used: DataUse
    timeout_s: float

    weighs = in_lock_step = False
    sends_in = "optimizer.step()"
    cancels = may_cancel = False
    local = True
    counts = False
    by_client = False
    shares_parameters = False
    private = secure = sums = False
    late = False
    any_optimizer = False
    stepping = False
    lets_writes_go = False
    model: nn.Module | None = field(default=None, init=False)
    rows: RowExchange | None = field(default=None, init=False)
    after_step: Applied | None = field(default=None, init=False)
    _part: Optimizer | None = field(default=None, init=False)
    _closure: Callable[[], Any] | None = field(default=None, init=False)
    _loss: Any = field(default=None, init=False)

    @property
    def part(self) -> Optimizer:
        """The user's optimizer whose step it is; `optimizer` may be several."""
        return self._part or self.optimizer

    def searching(self, closure: Callable[[], Any], step: Callable[[], None]) -> Any:
        """Take a `step` in which the optimizer evaluates the `closure` as often as it likes; the loss it began with."""
        self._closure, self._loss = closure, None
        try:
            step()
        finally:
            self._closure = None
        return self._loss

    def move(self) -> None:
        """The optimizer steps in this process."""
        if self._closure is None:
            self.part.step()
        else:
            self._loss = self.part.step(self._closure)
        self.moved()

    def moved(self) -> None:
        """The optimizer stepped."""
        if self.after_step is not None:
            self.after_step.of(self.replica.tensors)

    def turn_to(self, part: Optimizer) -> None:
        """The next step is of `part`, one of several optimizers."""
        if part is not self._part:
            self._part = part
            self.replica.turn_to(part)

    def begin(self) -> None:
        """Wait for the beginning."""
        raise NotImplementedError

    def step(self) -> None:
        """Take one step of the training loop."""
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Whether the step under way no longer counts."""
        return False

    def abandon(self) -> None:
        """Drop the step under way."""
        raise NotImplementedError

    def contribute(self, samples: int | None = None) -> None:
        """Exchange now what was trained since the last time, on so many samples."""
        raise ConfigurationError(
            "worker.contribute sends what local steps moved, and under this strategy each step is exchanged; take one that "
            "trains alone, such as local_sgd or fedavg"
        )

    def spent(self) -> tuple[float, str] | None:
        """The epsilon that this site's versions have spent, and why the run ends with it; None: it is no private site."""
        return None

    def make_way(self) -> bool:
        """Others wait in a round for this worker, which waits for them elsewhere, between two steps: let them go on without it;
        whether that is possible."""
        return False

    def report(self) -> None:
        """Tell the server what was done without it."""

    def end(self) -> None:
        """The training function returned."""
        raise NotImplementedError
