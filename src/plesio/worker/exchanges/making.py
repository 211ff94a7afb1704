"""What a worker's exchange is made of, by one of `plesio.worker.exchanges.builders`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.tensors.arena import Arena, Layout
from plesio.transport.held import Held
from plesio.transport.ring import Ring
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.exchange import Bell, Exchange
from plesio.worker.exchanges.place import Place
from plesio.worker.pacer import Timer
from plesio.worker.replicas import replica_for
from plesio.worker.replicas.replica import Replica, reads_in_place
from plesio.worker.replicas.shards import Shards
from plesio.worker.state import WorkerState

GoesOn = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Making:
    """The model that is trained and what trains it, the worker's place, and its line to the server.

    Attributes:
        private: parameters that nobody else has.
        shards: this process's part of the model, where that is split or the worker is several processes.
        goes_on: whether the worker goes on while an answer travels, asked before each contribution; None: never.
        line: as the fields of `Exchange` that all have.
    """

    state: WorkerState
    workers: int
    strategy: Strategy
    every: Every | None
    model: nn.Module
    optimizer: Optimizer
    tensors: Sequence[torch.Tensor]
    private: Sequence[torch.Tensor]
    shards: Shards | None
    place: Place
    goes_on: GoesOn | None
    line: tuple[Bell, Timer, DataUse, float]

    @property
    def own(self) -> tuple[Layout, nn.Module, Sequence[torch.Tensor], Ring[Arena]]:
        """What each replica is made of."""
        return self.place.layout, self.model, self.tensors, self.place.ring

    @property
    def to_server(self) -> tuple[Bell, Timer, DataUse, float, Strategy, Every | None, Held | None, GoesOn | None]:
        """What each exchange through the server is made of, beside what moves."""
        return *self.line, self.strategy, self.every, self.place.held, self.goes_on

    def replica(self, strategy: Strategy) -> Replica:
        """As this worker has the whole model in a phase of that strategy, which begins."""
        layout, model, tensors, ring = self.own
        kind = replica_for(strategy, tensors[0].device)
        ring = ring if reads_in_place(strategy, layout, model) else ring.copied
        replica = kind(layout, model, tensors, ring, self.place.slot, self.goes_on is not None)
        replica.private = self.private
        return replica


Builder = Callable[[Making], Exchange | None]
"""Makes the exchange, if that is the one for this worker."""
