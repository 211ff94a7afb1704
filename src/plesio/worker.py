"""`Worker`: what the training function is given, and the worker process that gives it."""

from __future__ import annotations

import builtins
import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from plesio.all_reduce import AllReduceExchange
from plesio.engine.assembly import arenas
from plesio.engine.messages import (
    Failed,
    Finished,
    Hello,
    LeaseReply,
    LeaseRequest,
    Logged,
    Ready,
    Refused,
    Regrouped,
    ToWorker,
    Welcome,
)
from plesio.errors import ConfigurationError, PlesioError, ServerLostError, StepCancelled, StopRun, error_class
from plesio.exchange import Pacer, ServerExchange, SharedMemoryExchange, Standing
from plesio.fabric.board import Board
from plesio.fabric.channel import Channel, ChannelClosedError, from_descriptor
from plesio.fabric.doorbell import Doorbell, Header, Note
from plesio.fabric.memory import SharedBlock
from plesio.faults import Pace
from plesio.loader import LeasedLoader
from plesio.optimizer import ExchangedOptimizer
from plesio.rules import AllReduce, Gradient
from plesio.rules import SharedMemory as ViaSharedMemory
from plesio.strategy import Strategy
from plesio.tensors.arena import Layout
from plesio.tensors.model import Described, describe, dump_structure
from plesio.tensors.outer import OptimizerSpec
from plesio.tensors.replica import GradientReplica, ParameterReplica, Replica, SharedReplica, reads_in_place

Exchange = ServerExchange | SharedMemoryExchange | AllReduceExchange
LOG_S = 0.1
"""How often what was logged is sent on."""


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker process is told when it starts."""

    worker: int
    incarnation: int
    workers: int
    seed: int
    evaluates: bool
    timeout_s: float
    threads: int
    server_pid: int
    pace_s: float | None
    jitter: float
    slow: float


class Worker:
    """One replica of the training loop, as its training function sees it.

    The function is called once in each worker process, with its own `Worker`:

        def train(worker):
            model, optimizer, loader = worker.prepare(model, optimizer, loader)
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()          # the exchange happens here
                worker.log(loss=loss)

    Attributes:
        rank: this worker's number, from 0.
        workers: how many the run was started with.
        seed: the run's seed.
        server_pid: the process that holds the global parameters.
    """

    def __init__(
        self,
        config: WorkerConfig,
        strategy: Strategy,
        engine: Channel[object],
        server: Channel[Welcome | Refused | LeaseReply | Regrouped],
        doorbell: Doorbell,
    ) -> None:
        self.rank = config.worker
        self.workers = config.workers
        self.seed = config.seed
        self.server_pid = config.server_pid
        self._config = config
        self._strategy = strategy
        self._engine = engine
        self._server = server
        self._doorbell = doorbell
        self._standing = Standing(config.worker)
        self._exchange: Exchange | None = None
        self._loader: LeasedLoader | None = None
        self._in_step = False
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._logged_steps = 0
        self._logged_s = time.monotonic()

    # What the training function may ask

    @property
    def staleness(self) -> int:
        """Versions folded between the one this worker's last contribution was computed from and its own fold."""
        return self._standing.staleness

    @property
    def version(self) -> int:
        """The version of the global parameters this worker computes from."""
        return self._standing.version

    @property
    def discarded(self) -> int:
        """How many of this worker's contributions did not count."""
        return self._standing.discarded

    @property
    def stopped(self) -> bool:
        """Whether the run is over; the loader ends by itself then, a loop of your own should look."""
        return self._standing.stopped

    @property
    def cancelled(self) -> bool:
        """Whether the step under way no longer counts (only a strategy that cancels late work ever says so)."""
        return self._exchange is not None and self._exchange.cancelled()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks one step, so that it can be left early once it no longer counts.

        Inside, every layer of the model looks before its forward pass whether the step was called off; if it was, the
        block ends there and the loop goes on with the next batch.

            for inputs, labels in loader:
                with worker.step():
                    ...
                    optimizer.step()
        """
        self._in_step = True
        try:
            yield
        except StepCancelled:
            assert self._exchange is not None, "only an exchange is cancelled"
            self._exchange.abandon()
        finally:
            self._in_step = False

    def log(self, **metrics: Any) -> None:
        """Record numbers (or one-element tensors), such as loss=loss; means over short spans reach the run's history.

        Raises:
            ConfigurationError: something that is no number.
        """
        for name, value in metrics.items():
            try:
                number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"worker.log({name}=...): {type(value).__name__} is not one number ({error})"
                ) from error
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] = self._counts.get(name, 0) + 1
        if time.monotonic() - self._logged_s > LOG_S:
            self._flush()

    def _flush(self) -> None:
        if not self._sums:
            return
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        steps = self._standing.steps - self._logged_steps
        self._engine.send(Logged(time.monotonic(), steps, means))
        self._sums.clear()
        self._counts.clear()
        self._logged_steps = self._standing.steps
        self._logged_s = time.monotonic()

    # Taking part

    def prepare(
        self, model: nn.Module, optimizer: Optimizer | None = None, loader: Any = None
    ) -> tuple[nn.Module, Any, Any]:
        """Let the run take care of a model, its optimizer and its data; use what is returned in their place.

        All workers start from worker 0's weights (the lowest live one's). The model stays the same object (under
        all-reduce it comes back in a wrapper, which is what must be called); its tensors move to the run's memory. The
        optimizer becomes one whose `step()` exchanges as the strategy says. The loader (a
        DataLoader, or anything with a length and items) is shared out among the workers; None for data of your own.

        Raises:
            ConfigurationError: prepared twice, no optimizer, an empty loader, tensors that cannot be shared.
            ModelMismatchError: this worker's model is not the other workers'.
            SharedMemoryError: the host has too little shared memory.
        """
        if self._exchange is not None:
            raise ConfigurationError("prepare was called before; one model is trained in a run")
        if not isinstance(optimizer, Optimizer):
            raise ConfigurationError(
                f"prepare was given {type(optimizer).__name__} for an optimizer; allowed: any torch.optim.Optimizer"
            )
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            raise ConfigurationError("the model is not on the CPU; this engine trains on CPUs: leave out .to(device)")
        if loader is not None:
            self._loader = LeasedLoader(loader, self._lease, self.seed, self.workers)
        described, tensors = describe(model, optimizer)
        welcome, descriptors = self._introduce(model, optimizer, described, tensors)
        self._exchange = self._join(model, optimizer, described, tensors, welcome, descriptors)
        if self._exchange.cancels:
            self._look_before_each_layer(model)
        seed_everything(self.seed * 1_000_003 + self.rank + 1)
        if isinstance(self._exchange, AllReduceExchange):
            model = self._exchange.model
        return model, ExchangedOptimizer(optimizer, self._exchange), self._loader

    def _introduce(
        self, model: nn.Module, optimizer: Optimizer, described: Described, tensors: list[torch.Tensor]
    ) -> tuple[Welcome, list[int]]:
        """Show the server what we have; it answers when everybody has."""
        spec = OptimizerSpec.of(optimizer)
        self._server.send(
            Hello(
                worker=self.rank,
                incarnation=self._config.incarnation,
                model=described,
                optimizer=cloudpickle.dumps((spec.kind, spec.defaults, spec.groups)),
                structure=dump_structure(model, tensors) if self._config.evaluates else b"",
            )
        )
        reply, descriptors = self._ask("every worker to prepare its model")
        assert isinstance(reply, Welcome)
        return reply, descriptors

    def _join(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        described: Described,
        tensors: list[torch.Tensor],
        welcome: Welcome,
        descriptors: list[int],
    ) -> Exchange:
        """Map the run's memory, put the model into it, and wait for the beginning."""
        layout = Layout(described.specs)
        ring_block = SharedBlock.attach(descriptors[0], layout.nbytes * welcome.buffers)
        board = Board.attach(descriptors[2], welcome.workers)
        ring = arenas(ring_block, layout, welcome.buffers)
        if welcome.first:
            for tensor, view in zip(tensors, ring[0].views, strict=True):
                view.copy_(tensor.detach())
        pace = None if self._config.pace_s is None else Pace(self._config.pace_s, self._config.jitter)
        pacer = Pacer(pace, self._config.slow, random.Random(self.seed * 7919 + self.rank))
        exchange: Exchange
        if isinstance(self._strategy.via, ViaSharedMemory):
            exchange = SharedMemoryExchange(
                self._strategy,
                self.workers,
                self._standing,
                optimizer,
                SharedReplica(layout, tensors, ring),
                self._doorbell,
                board,
                pacer,
                self._used,
                self._config.timeout_s,
            )
        elif isinstance(self._strategy.via, AllReduce):
            exchange = AllReduceExchange(
                self._standing,
                optimizer,
                ParameterReplica(layout, tensors, ring, ring[0]),
                ring,
                model,
                self._doorbell,
                board,
                pacer,
                self._used,
                self._regrouped,
                self._config.timeout_s,
            )
        else:
            slots = SharedBlock.attach(descriptors[1], layout.nbytes * welcome.workers)
            slot = arenas(slots, layout, welcome.workers)[self.rank]
            replica: Replica
            if isinstance(self._strategy.send, Gradient):
                replica = GradientReplica(layout, tensors, ring, slot, reads_in_place(layout, model))
            else:
                replica = ParameterReplica(layout, tensors, ring, slot)
            exchange = ServerExchange(
                self._strategy,
                self._standing,
                optimizer,
                replica,
                self._doorbell,
                pacer,
                self._used,
                self._config.timeout_s,
            )
            slots.close()
        ring_block.close()
        self._server.send(Ready())
        exchange.begin()
        pacer.begin()
        return exchange

    def _ask(self, waiting_for: str) -> tuple[Welcome | LeaseReply | Regrouped, list[int]]:
        """The server's next message; what it refuses is raised here."""
        try:
            reply, descriptors = self._server.receive(self._config.timeout_s, waiting_for)
        except ChannelClosedError:
            raise ServerLostError(
                f"the server is gone: worker {self.rank} waited for {waiting_for}; start the run again"
            ) from None
        if isinstance(reply, Refused):
            raise (error_class(reply.kind) or PlesioError)(reply.why)
        return reply, descriptors

    def _lease(self, epoch: int, total: int, most: int, unused: int) -> tuple[tuple[int, int], ...]:
        if self._standing.stopped:
            return ()
        if isinstance(self._exchange, (SharedMemoryExchange, AllReduceExchange)):
            self._exchange.report()
        with suppress(ChannelClosedError):  # the answer's end of file tells
            self._server.send(LeaseRequest(epoch, total, most, unused))
        reply, _ = self._ask(f"data of epoch {epoch}")
        assert isinstance(reply, LeaseReply)
        self._standing.stopped = self._standing.stopped or reply.stop
        return reply.batches

    def _regrouped(self) -> Regrouped:
        reply, _ = self._ask("the group it is in from now on")
        assert isinstance(reply, Regrouped)
        return reply

    def _used(self) -> tuple[int, int]:
        return self._loader.take() if self._loader is not None else (0, 0)

    def _look_before_each_layer(self, model: nn.Module) -> None:
        def look(*_: object) -> None:
            if self._in_step and self.cancelled:
                raise StepCancelled("this step no longer counts")

        for module in model.modules():
            if next(module.children(), None) is None:
                module.register_forward_pre_hook(look)

    def end(self) -> None:
        """The training function returned."""
        self._flush()
        if self._exchange is not None:
            self._exchange.end()
        else:
            self._doorbell.send(Header(Note.FINISH, True, 0, 0, 0, 0, 0, time.monotonic()))


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and random in this process."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def main(arguments: bytes, descriptors: list[int], objects: dict[str, object]) -> None:
    """Entry of a worker process. `descriptors`: engine, server, push, answer."""
    config = msgspec.msgpack.decode(arguments, type=WorkerConfig)
    torch.set_num_threads(config.threads)
    seed_everything(config.seed)
    engine: Channel[object] = Channel(from_descriptor(descriptors[0]), object, "the engine")
    server: Channel[Any] = Channel(from_descriptor(descriptors[1]), ToWorker, "the server")
    doorbell = Doorbell(descriptors[2], descriptors[3], config.worker)
    strategy, train = objects["strategy"], objects["train"]
    assert isinstance(strategy, Strategy) and callable(train)
    worker = Worker(config, strategy, engine, server, doorbell)
    try:
        _train(train, worker)
        engine.send(Finished())
    except ChannelClosedError:
        pass  # nobody is left to tell
    except builtins.BaseException as error:
        with suppress(ChannelClosedError):  # the engine may have given the run up
            engine.send(Failed(type(error).__name__, str(error), traceback.format_exc()))
        raise SystemExit(1) from None


def _train(train: Callable[[Worker], object], worker: Worker) -> None:
    with suppress(StopRun):
        train(worker)
    worker.end()
