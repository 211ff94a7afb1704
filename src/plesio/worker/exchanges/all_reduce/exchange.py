"""A worker's part in an all-reduce: from a backward pass to the optimizer's step, and what the server is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import nn
from torch.optim import LBFGS

from plesio.errors import ConfigurationError
from plesio.tensors.arena import Kind
from plesio.tensors.model import Models
from plesio.tensors.several import Several
from plesio.worker.exchanges.all_reduce.replicated import ReplicatedModel, reduce_again
from plesio.worker.exchanges.all_reduce.unreduced import UnreducedGradients
from plesio.worker.exchanges.island_bell import IslandBell
from plesio.worker.exchanges.making import Making
from plesio.worker.exchanges.server import SeatLostError, ServerExchange
from plesio.worker.guards.divergence import MODULUS, DivergenceCheck
from plesio.worker.replicas.shards import shards_for
from plesio.worker.warn import warn

SLOWER = (
    "allreduce: a GPU is visible, so the gradients are averaged by torch, and the prepared model is on the CPU, where the server "
    "does it faster, in memory that the workers share: set CUDA_VISIBLE_DEVICES='' for this run, or move the model to "
    "worker.device before prepare. allreduce('torch') asks for torch's way without this warning"
)

SHARE_MAX = 0.05  # of the time, for showing the server where the workers are


@dataclass(eq=False)
class AllReduceExchange(ServerExchange):
    """A worker's part in it.

    Attributes:
        leader: whether this is the first of the workers.
        user_model: what was given to prepare; `model` is what the training loop calls.
    """

    leader: bool = True
    user_model: nn.Module | None = None
    counts = False  # only the leader's would be told

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.user_model is not None, "there is something to train"
        if isinstance(self.user_model, Models) or isinstance(self.optimizer, Several | LBFGS):
            raise ConfigurationError(
                "allreduce exchanges in the backward pass of one module, for one optimizer that steps once a backward pass; for "
                "several modules or optimizers, and for L-BFGS, take sync_sgd or local_sgd"
            )
        replica = self.replica
        self._unreduced = UnreducedGradients(replica.trained)
        told = self.user_model, replica.check, self._unreduced.after_forward
        self.model: ReplicatedModel = ReplicatedModel(*told, half=self.strategy.every.half)
        kinds = [spec.kind for spec in replica.layout.specs]
        self._buffers = [one for one, kind in zip(replica.tensors, kinds, strict=True) if kind is Kind.BUFFER]
        self._kept = [one.clone() for one in self._buffers]
        self._told = 0  # samples, by the script
        self._kept_s = 0.0  # how long it took to leave what it holds
        self._check = DivergenceCheck(replica.layout, replica.tensors, self.optimizer)
        if isinstance(self.doorbell, IslandBell):
            self.doorbell.tensors = len(replica.tensors)
            self.doorbell.stamps, self.doorbell.refuse = self._stamps, self._refuse
            self.doorbell.grants = self._grants
        if self.strategy.name == "allreduce" and replica.tensors[0].is_cpu and torch.cuda.is_available():
            warn(SLOWER)

    def begin(self, lost: SeatLostError | None = None) -> None:
        super().begin(lost)
        self.state.before = self.state.steps_before
        self._keep_buffers()
        self._begin_step()

    def step(self) -> None:
        if self._unreduced.pending and not self.state.stopped:
            self._unreduced.pending = False
            reduce_again(self.model)
        super().step()
        self._begin_step()

    def _step_here(self) -> None:
        if not self.replica.tensors[
            0
        ].is_cpu:  # it is not waited for: what follows a gradient that is not finite is dropped
            super()._step_here()
        elif self._closure is None and not self.replica.check_gradients():
            self._skip()
            return
        else:
            self.move()
        self._keep_buffers()

    def _skip(self) -> None:
        """The mean gradient is not finite, on all workers alike: what was done before is shown, and this step dropped alone."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._kept)
        if self._steps:
            self._push()
        self._finite, self._granted = False, 1

    def _keep_buffers(self) -> None:
        """Forward passes write into them before it is known whether their step counts."""
        if self._buffers:
            torch._foreach_copy_(self._kept, self._buffers)

    def _begin_step(self) -> None:
        """Its random numbers are its own: how many steps are shown together depends on the time."""
        stepped = self.used.batches
        self.state.begin(self.state.number + 1)
        self.state.stepped = stepped

    def _grants(self, steps: int) -> int:
        """Show it less often where that would take more than its share of the time."""
        cost_s = self.pacer.now_s() - self._sent_s + self._kept_s
        worked_s = self._sent_s - self._exchanged_s - self._kept_s
        return max(steps, int(self._steps / worked_s * cost_s / SHARE_MAX)) if steps and worked_s > 0.0 else steps

    def _keep_own(self) -> None:
        """What all hold alike, one of them leaves."""
        if self.leader:
            began_s = self.pacer.now_s()
            super()._keep_own()
            self._kept_s = self.pacer.now_s() - began_s

    def _next(self) -> None:
        self._number += 1

    def _fill_slot(self) -> bool:
        self._told = self.used.said % MODULUS
        return super()._fill_slot()

    def _stamps(self) -> tuple[int, int, int]:
        return self._check.parameters(self._number), self._check.settings(), self._told

    def _refuse(self, which: int) -> NoReturn:
        if which > 1:
            raise ConfigurationError(
                "worker.count says other numbers of samples on other workers, and torch's all-reduce counts all alike: take "
                "sync_sgd, or allreduce on one host without a GPU, which weigh by samples; or leave worker.count out"
            )
        if which:
            self._check.refuse_settings()
        self._check.refuse_parameters(self._number, self.state.steps)


def build(made: Making) -> AllReduceExchange | None:
    """Where workers are ranks that reduce among themselves."""
    if not made.strategy.every.among_ranks:
        return None
    shards = made.shards
    assert shards is not None, "its processes are a group"
    replica = shards_for(made.strategy)(*made.own, made.place.slot, shards, shards.leader)
    return AllReduceExchange(made.state, made.optimizer, replica, *made.to_server, shards.leader, made.model)
