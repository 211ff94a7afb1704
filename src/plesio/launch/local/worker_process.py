"""The worker process: a `Worker` whose contributions go to a server process beside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from plesio.config.faults import slowness
from plesio.errors import ConfigurationError, PlesioError, ServerLostError, StopRun, error_class
from plesio.host.memory import CopyOnWriteView, SharedBlock
from plesio.launch.job import Job
from plesio.launch.local.children import keep_to_itself, reported_to
from plesio.launch.local.output import speak_as
from plesio.launch.returned import packed
from plesio.memory.blocks import arenas
from plesio.observe.clients import Visit
from plesio.protocol.launcher import Finished, Logged, Returned, StopRequest, Visited
from plesio.protocol.worker import (
    Farewell,
    GroupGiven,
    GroupWanted,
    LeaseReply,
    LeaseRequest,
    Ready,
    Refused,
    Regrouped,
    StateGiven,
    StateWanted,
    ToWorker,
    Welcome,
)
from plesio.tensors.arena import PAGE, Arena, Layout
from plesio.tensors.carrying import States, brought_back, hand_over
from plesio.tensors.model import device_of
from plesio.transport.board import Board
from plesio.transport.channel import Channel, ChannelClosedError
from plesio.transport.collective import Hosts
from plesio.transport.doorbell import Doorbell
from plesio.transport.held import Held
from plesio.transport.run_group import default_group
from plesio.worker.context import Taking, introduction
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.all_reduce import AllReduceExchange
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.exchanges.own_step import OwnStepExchange
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.exchanges.shared_memory import SharedMemoryExchange
from plesio.worker.pacer import Pacer
from plesio.worker.randomness.draws import OwnDraws
from plesio.worker.randomness.seeding import begin_with
from plesio.worker.replicas.mean import MeanReplica
from plesio.worker.replicas.replica import ParameterReplica, SharedReplica, reads_in_place, replica_for
from plesio.worker.state import WorkerState
from plesio.worker.worker import Worker, taking_part

BEFORE = "training had not begun: the messages of the run's head, or of ps.run, say why"
Reply = TypeVar("Reply", Welcome, LeaseReply, Regrouped, StateGiven, GroupGiven)


class ProcessContext:
    """The context of a worker process."""

    hosts = Hosts()
    inline = False

    def __init__(
        self,
        job: Job,
        rank: int,
        server_pid: int,
        engine: Channel[object],
        server: Channel[Welcome | Refused | LeaseReply | Regrouped],
        doorbell: Doorbell,
    ) -> None:
        self.rank = rank
        self.workers = job.config.workers
        self._seats = job.config.seats
        self.seed = job.config.seeded
        self.server_pid = server_pid
        self.lenient = job.config.on_worker_error == "continue"
        self.state = WorkerState(rank, self.seed, OwnDraws() if self._seats == 1 else None)
        self._job = job
        self._strategy = job.config.strategy
        self._timeout_s = 2 * job.config.timeout_s  # the server notices first, and knows who is waited for
        self._engine = engine
        self._server = server
        self._doorbell = doorbell
        self._exchange: Exchange | None = None
        self._begun_s: float | None = None
        self.refused = False
        """Whether this worker is, and the others go on."""

    def now_s(self) -> float:
        return time.monotonic()

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        """Tell the engine, in time: nobody waits for one that was stopped."""
        time_s = time.monotonic() - self._begun_s if self._begun_s is not None else 0.0
        self._engine.send_in_time(Logged(time_s, steps, metrics))

    def visited(self, visits: tuple[Visit, ...]) -> None:
        self._engine.send_in_time(Visited(visits))

    def stop(self, why: str) -> None:
        """Tell the engine; if it is gone, the run is over anyway."""
        with suppress(ChannelClosedError):
            self._engine.send(StopRequest(why))

    def leave(self) -> None:
        self._doorbell.send(Farewell())

    def join(self, given: Taking, used: DataUse) -> tuple[Exchange, nn.Module]:
        """Show the server what we have, map the run's memory, and wait for the beginning."""
        model, optimizer = given.model, given.optimizer
        device = device_of(model)
        if device.type != "cpu" and self._strategy.via.in_shared_memory:
            raise ConfigurationError(
                f"{self._strategy.name} trains in memory that all workers share, which is the CPU's, and this model is on "
                f"{device}; every other strategy takes a model on any device"
            )
        evaluates = self._job.evaluate is not None
        hello, carried, tensors = introduction(self.rank, self._strategy, given, evaluates)
        with suppress(ChannelClosedError):  # the answer's end of file tells
            self._server.send(hello)
        welcome, descriptors = self._ask(Welcome, "every worker to prepare its model")
        layout = Layout(hello.model.specs)
        block = SharedBlock(descriptors[0], layout.nbytes * welcome.buffers)
        ring = arenas(block, layout, welcome.buffers)
        hand_over(optimizer, carried, tensors, ring, welcome.first)
        exchange = self._build(model, optimizer, tensors, layout, ring, descriptors, used)
        block.close()
        self._server.send(Ready())
        self.state.begin(0)
        exchange.begin()
        self._begun_s = time.monotonic()
        self._exchange = exchange
        return exchange, exchange.model if isinstance(exchange, AllReduceExchange) else model

    def _build(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        tensors: list[torch.Tensor],
        layout: Layout,
        ring: tuple[Arena, ...],
        descriptors: list[int],
        used: DataUse,
    ) -> Exchange:
        """The exchange for who folds: everybody in shared memory, everybody in a replica, or the server."""
        config, state, via = self._job.config, self.state, self._strategy.via
        pacer = Pacer(config.pace, slowness(config.faults, self.rank), random.Random(self.seed * 7919 + self.rank))
        line = self._doorbell, pacer, used, self._timeout_s
        if via.in_shared_memory:
            shared = SharedReplica(layout, model, tensors, ring, ring[0])
            board = Board.attach(descriptors[2], self._seats)
            share = self._strategy.outer.scale(1, self.workers)
            return SharedMemoryExchange(state, optimizer, shared, *line, board, share)
        if via.by_collective:
            own = ParameterReplica(layout, model, tensors, ring, ring[0])
            board = Board.attach(descriptors[2], self._seats)
            return AllReduceExchange(state, optimizer, own, *line, board, ring, model, self._regrouped, self.hosts)
        homes = self._seats if self._strategy.gives_back_mean else 0
        slots = arenas(SharedBlock(descriptors[1], layout.nbytes * (self._seats + homes)), layout, self._seats + homes)
        slot = slots[self.rank]
        held = Held(descriptors[3]) if len(descriptors) > 3 else None
        if homes:
            mean = MeanReplica(layout, model, tensors, ring, slot, home=slots[homes + self.rank])
            board = Board.attach(descriptors[2], self._seats)
            keeps = bool(self._job.keeping.folder)
            return OwnStepExchange(
                state, optimizer, mean, *line, self._strategy, None, held, lambda: board.mirror_wanted, keeps
            )
        renew: Callable[[int], None] | None = None
        versions = ring
        if CopyOnWriteView.possible() and reads_in_place(self._strategy, layout, model):
            view = CopyOnWriteView(descriptors[0], layout.nbytes * len(ring))
            ring = arenas(view, layout, len(ring))
            renew = partial(view.renew, layout.nbytes)
        replica = replica_for(self._strategy)(layout, model, tensors, ring, slot, renew, versions)
        return ServerExchange(state, optimizer, replica, *line, self._strategy, held=held)

    def _ask(self, kind: type[Reply], waiting_for: str) -> tuple[Reply, list[int]]:
        """The server's next message; what it refuses is raised here."""
        try:
            reply, descriptors = self._server.receive(self._timeout_s, waiting_for)
        except ChannelClosedError:
            raise ServerLostError(
                f"the server is gone: worker {self.rank} waited for {waiting_for}; "
                + ("go on from its last checkpoint with resume=, or start the run again" if self._begun_s else BEFORE)
            ) from None
        if isinstance(reply, Refused):
            self.refused = reply.alone
            raise (error_class(reply.kind) or PlesioError)(reply.why)
        assert isinstance(reply, kind), "a worker knows what comes next"
        return reply, descriptors

    def lease(self, epoch: int, total: int, most: int, unused: int, digest: int) -> LeaseReply:
        """Ask the server; what was done since is told first, so that it need not be asked about."""
        if self.state.stopped:
            raise StopRun("the run is over")  # also for a loop without end
        if self._exchange is not None:
            self._exchange.report()
        with suppress(ChannelClosedError):  # the answer's end of file tells
            self._server.send(LeaseRequest(epoch, total, most, unused, digest))
        reply, _ = self._ask(LeaseReply, f"data of epoch {epoch}")
        self.state.stopped = self.state.stopped or reply.stop
        return reply

    def optimizer_state(self, tensors: Sequence[torch.Tensor]) -> States | None:
        self._server.send(StateWanted())
        given, descriptors = self._ask(StateGiven, "the optimizer's state")
        assert self._exchange is not None, "it trains"
        keys, layout = given.carried.keys, self._exchange.replica.layout
        block = SharedBlock(descriptors[0], layout.nbytes * len(keys) or PAGE)
        states = brought_back(given.carried, tensors, arenas(block, layout, len(keys)))
        block.close()
        return states

    def group(self) -> AbstractContextManager[None]:
        """Inside, workers in lock step are the default group of `torch.distributed`."""
        if self.workers == 1 or self._job.listening is not None or not self._strategy.in_lock_step:
            return nullcontext()
        return default_group(self.rank, self.workers, self._group_given, self._make_way, self._timeout_s)

    def _group_given(self) -> GroupGiven:
        self._server.send(GroupWanted())
        return self._ask(GroupGiven, "who is left for a collective")[0]

    def _make_way(self) -> bool:
        return self._exchange is not None and self._exchange.make_way()

    def _regrouped(self) -> Regrouped:
        return self._ask(Regrouped, "the group it is in from now on")[0]


def main(job: Job, descriptors: list[int], rank: int, server_pid: int) -> None:
    """Entry of a worker process. `descriptors`: engine, server, push, answer."""
    torch.set_num_threads(job.threads)
    begin_with(job.config.seeded, job.sources)
    engine: Channel[object] = Channel.attach(descriptors[0], object, "the engine")
    server: Channel[Any] = Channel.attach(descriptors[1], ToWorker, "the server")
    doorbell = Doorbell(descriptors[2], descriptors[3], rank)
    keep_to_itself(descriptors, engine, server)
    speak_as(rank, job.config.workers, job.log_level)
    with reported_to(engine):
        context = ProcessContext(job, rank, server_pid, engine, server, doorbell)
        worker = Worker(context)
        with context.group(), taking_part(worker):
            value = packed(job.function(worker), rank)
            if value:  # before the server hears of the end: when that has ended, nobody waits for this
                engine.send(Returned(value))
        engine.send(Finished())
