"""What this process does of its worker, of which it may be one of several ranks: its part of the model, and one lease for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from msgspec.structs import replace
from torch import nn

from plesio.config.rules import ISLANDS
from plesio.errors import ConfigurationError
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.worker import Hello, LeaseReply, LeaseRequest
from plesio.strategy import Strategy
from plesio.strategy.rules import why_not
from plesio.tensors.carrying import Carried
from plesio.tensors.local import is_split
from plesio.transport.island_group import IslandGroup
from plesio.worker.guards.split import check_alike, check_kind, check_model
from plesio.worker.introduction import Taking, introduction
from plesio.worker.island import Island
from plesio.worker.replicas.regions import agreed
from plesio.worker.replicas.shards import Shards
from plesio.worker.state import WorkerState

ANSWER_S = 10.0  # how much longer the other ranks of an island wait than the one that waits for the server
decode_reply: Callable[[bytes], LeaseReply] = decoder_of(LeaseReply)


class OwnProcess:
    """This process as a rank of its worker's `island`. A worker that is one process is the only rank, and asks nobody."""

    def __init__(self, island: Island, state: WorkerState, strategy: Strategy) -> None:
        self.island, self._state, self._strategy = island, state, strategy
        self._group = island.group
        self.part: Shards | None = None
        """Its part of the model, where it has not all of it: then it brings that, and takes it back."""
        self.brings: dict[str, Callable[..., None]] = {}
        self.takes: dict[str, Callable[..., torch.Tensor]] = {}

    def terms(self, timeout_s: float) -> tuple[str, float, float | None]:
        """What its island is called, how long it waits for the others (longer than the leader for the server), and how long a
        collective of the training loop may take, if not as long."""
        if self._strategy.every.among_ranks:
            return self._strategy.name, timeout_s + ANSWER_S, timeout_s / 2
        return f"worker {self._state.worker}", timeout_s + ANSWER_S, None

    @classmethod
    def lone(cls, state: WorkerState, strategy: Strategy) -> Self:
        """The only one of its worker."""
        return cls(Island(state, local_rank=state.worker), state, strategy)

    def introduction(
        self, given: Taking, shows: bool, plain: Callable[[], nn.Module] | None
    ) -> tuple[Hello, Carried | None, list[torch.Tensor]]:
        """As that of a worker (`plesio.worker.introduction`); `ConfigurationError` for a model that no ranks exchange."""
        if self._group is not None:  # before its tables' kernels are compiled
            check_kind(given.model)
        hello, carried, tensors = introduction(self._state.worker, self._strategy, given, shows, plain)
        return self._take_part(hello, given, tensors), carried, tensors

    def _take_part(self, hello: Hello, given: Taking, tensors: Sequence[torch.Tensor]) -> Hello:
        """Find its part of the model, where the worker is several or torch has split that; what it then shows of itself."""
        group, specs = self._group, hello.model.specs
        if group is None and not any(map(is_split, tensors)):
            return hello
        if why := why_not(ISLANDS, self._strategy):
            what = (
                "this worker is several processes" if group is not None else "the model is split by torch (a DTensor)"
            )
            raise ConfigurationError(f"{what}, and under {self._strategy.name} {why}")
        check_model(given.model, self.island, tensors)
        names = [spec.name for spec in specs]
        if group is None:
            shares = agreed(names, tensors, 0, lambda numbers: [list(numbers)])
        else:
            check_alike(group, specs, hello.optimizers)
            shares = agreed(names, tensors, group.rank, group.rows)
        self.part = part = Shards(tensors, shares, self.island.rank == 0)
        self.brings, self.takes = {"bring": part.bring}, {"take": part.taken}
        # It copies tensor by tensor, and each rank's may lie in another order.
        return replace(hello, model=replace(hello.model, specs=tuple(replace(one, order=()) for one in specs)))

    def tell_to_leave(self) -> None:
        """It is to leave. With others it does when all know, which is at the next exchange."""
        self._state.told = True
        self._state.leaving = self._state.leaving or self.island.ranks == 1

    def arrive(self) -> None:
        """Wait for the others: what each of them brings lies there."""
        if self._group is not None:
            self._group.total([])

    def lease(self, ask: Callable[[LeaseRequest], LeaseReply], request: LeaseRequest) -> LeaseReply:
        """One lease for all: the leader asks."""
        group = self._group
        if group is None:
            return ask(request)
        self._check_order(group, request)
        reply = decode_reply(group.told(lambda: encode(ask(request))))
        self._state.stopped = self._state.stopped or reply.stop
        return reply

    def _check_order(self, group: IslandGroup, request: LeaseRequest) -> None:
        """Raise `ConfigurationError` unless all ranks drew the same batches for this epoch."""
        every = group.rows([request.total, request.digest], f"data of epoch {request.epoch}")
        others = [rank for rank, one in enumerate(every) if one != every[group.rank]]
        if not others:
            return
        first, second = sorted((group.rank, others[0]))
        kind = "workers" if self._strategy.every.among_ranks else f"worker {self._state.worker}: its ranks"
        raise ConfigurationError(
            f"{kind} {first} and {second} drew different batches for epoch {request.epoch}: each takes its part of the same "
            "ones, so give all the same data, whole, and draw its order from worker.seed, not by rank or from a source that "
            "nobody seeds"
        )
