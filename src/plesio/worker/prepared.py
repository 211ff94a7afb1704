"""What a worker has of the run since `prepare`, and how that is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from plesio.attachments.schedules import Scheduling
from plesio.capabilities import those_with
from plesio.errors import ConfigurationError
from plesio.tensors.after_step import AfterStep, Applied
from plesio.tensors.model import device_of
from plesio.worker.cancelling import check_before_layers
from plesio.worker.capabilities import those_of
from plesio.worker.capability import Capability
from plesio.worker.context import WorkerContext
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.data.parts import SharedLoader, StreamLoader
from plesio.worker.data.source import is_stream, warn_of_processes
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.explaining import refuse_synchronised
from plesio.worker.given import Given, How
from plesio.worker.guards.exchanged import watch
from plesio.worker.guards.guards import Guards
from plesio.worker.introduction import Taking
from plesio.worker.metrics import Metrics
from plesio.worker.optimizer import ExchangedOptimizer
from plesio.worker.randomness.seeding import seed_device, step_seed
from plesio.worker.schedule import RunSchedule
from plesio.worker.settings import go_on
from plesio.worker.warn import listed, warn


class Prepared:
    """What a worker has of the run: an exchange, its data, and what its loop is to use in place of what it gave."""

    def __init__(self, context: WorkerContext) -> None:
        self.rank = self._number = context.number  # its rank, to the training function
        self.workers = context.workers
        self.seed = context.seed
        self.server_pid = context.server_pid
        self.island = context.process.island
        self._sharing = (0, 1) if context.state.together > 1 else (context.number, context.workers)
        self._context = context
        self._state = context.state
        self._exchange: Exchange | None = None
        self._loader: LeasedLoader | None = None
        self._able: list[Capability] = []
        self._stepped: tuple[Callable[[], None], ...] = ()  # what they do after a step
        self._by_turns = False  # whether one of them counts and sends what the loop does
        self._prepared: dict[int, Any] = {}  # by the identity of what was given
        self._schedules: list[RunSchedule] = []
        self._used = DataUse()
        self._shared = 0  # loaders beside the first
        self._in_step = False
        self._metrics = Metrics(context)

    def _exchange_for(self, call: str) -> Exchange:
        """The exchange, for a method that is asked after prepare."""
        if self._exchange is None:
            raise ConfigurationError(f"worker.{call} before prepare: prepare the model and the optimizer first")
        return self._exchange

    def _prepare(self, things: tuple[Any, ...], how: How) -> tuple[Any, ...]:
        """What the loop is to use in place of these things."""
        given = Given.sorted(things)
        if self._exchange is None:
            given.check()
            self._take_part(given, how)
        else:
            self._prepare_more(given, self._exchange)
        for one in given.schedulers:
            if id(one) not in self._prepared:
                place, later = len(self._schedules), id(one.optimizer) not in self._prepared
                schedule = RunSchedule(one, lambda: self._loader, self._state, self._by_turns, place, later)
                self._prepared[id(one)] = schedule
                self._schedules.append(schedule)
        return tuple(None if one is None else self._prepared[id(one)] for one in things)

    def _prepare_more(self, given: Given, exchange: Exchange) -> None:
        """What a later call may be given: schedulers, what was given before, and optimizers where any may step."""
        optimizers = [one for one in given.optimizers if id(one) not in self._prepared]
        if exchange.any_optimizer:
            self._prepared |= {id(one): one for one in optimizers}
        elif optimizers:
            raise ConfigurationError(
                f"prepare was called before, and a second {type(optimizers[0]).__name__} would train this worker alone: set "
                "the first one's param_groups; or take allreduce on one host without a GPU, where any may step"
            )
        if any(id(one) not in self._prepared for one in given.once):
            raise ConfigurationError(
                "prepare was called before, and takes only schedulers then: a run trains what the first call was given; for "
                "several folds call ps.run once each"
            )

    def _take_part(self, given: Given, how: How) -> None:
        """Join the run with what was given."""
        able = self._able = those_of(given, how, self._context, self._schedules)
        self._stepped, self._by_turns = those_with(able, Capability.stepped), any(one.by_turns for one in able)
        model, optimizer = given.model, given.optimizer
        own = given.own_part(how.share, self._context)
        self._begun = partial(self._state.trained_since, optimizer)
        self._judges = lambda: not any(one.training for one in given.modules)
        after = AfterStep.of(how.after_step) if how.after_step is not None else None
        if self.workers > 1 and not dist.is_initialized():
            refuse_synchronised(model)
        seed_device(device_of(model))
        streams = [one for one in given.loaders if is_stream(one)]
        others = [one for one in given.loaders if not is_stream(one)]
        if self._number == 0 and self.server_pid:  # the workers are processes of this host
            warn_of_processes(given.loaders, self.workers)
        if others:
            self._lease(others[0])
        guards = Guards(model, optimizer, how.frozen_too)
        scheduling = self._state.attachments.of(Scheduling)
        scheduling.begin(optimizer)
        self._set_again = partial(go_on, optimizer, scheduling, self._schedules)
        taking = Taking(model, optimizer, after, how.frozen_too, own)
        exchange, ours = self._context.join(taking, self._used)
        self._exchange = exchange
        exchange.lets_writes_go = how.lets_writes_go
        if own is not None and self._state.before and own.of_worker:
            warn(
                f"worker {self._number} goes on with {listed(list(own.tensors))} as its script made that: no checkpoint has what "
                "share= leaves out; load it from a file of the worker's own"
            )
        if after is not None:
            exchange.after_step = Applied(after, exchange.replica.layout.specs)
        given.check_strategy(exchange)
        self._watch(model, exchange, guards)
        several = len(given.optimizers) > 1
        fetch = self._context.optimizer_state
        self._prepared = {
            **{id(one): one for one in given.modules},
            id(model): ours,
            **{id(one): ExchangedOptimizer(one, exchange, guards, fetch, several) for one in given.optimizers},
            **{id(one): self._loader for one in others[:1]},
            **{id(one): self._parted(one, DataUse()) for one in [*others[1:], *streams]},
        }
        for one in able:
            self._prepared |= one.begun(taking, exchange)
        for part in given.optimizers:
            for stepped in self._stepped:
                self._prepared[id(part)].register_step_post_hook(stepped)

    def _watch(self, model: torch.nn.Module, exchange: Exchange, guards: Guards) -> None:
        """See what the loop does to the model."""
        if exchange.may_cancel:
            check_before_layers(model, lambda: self._in_step and exchange.cancelled())
        if not exchange.any_optimizer:
            first_of_several = self.workers > 1 and self._number == 0 and not exchange.by_client
            watch(exchange.replica.trained, exchange, self._state if first_of_several else None)
        guards.prepared(
            replaces=not exchange.local,
            outside=self._number == 0 and not exchange.shares_parameters,
            reads_alone=lambda: self.workers > 1 and not (self._used.batches or self._used.samples),
            go_on=self._set_again,
        )

    def _go_on(self) -> None:
        """The first batch: of a resumed run, what was read before counts, and schedules go to where they were."""
        assert self._loader is not None, "it gives the batch"
        self._loader.read += self._state.batches_before
        for one in self._schedules:
            one.go_on(len(self._schedules))
        self._set_again()

    def _parted(self, loader: Any, used: DataUse) -> Any:
        if is_stream(loader):
            return StreamLoader(loader, self._number, self.workers, self._used, self._state, self.island)
        self._shared += 1
        seed = step_seed(self.seed, self._shared, 0)
        slices = lambda: self._state.parts  # noqa: E731
        together = self._state.together
        return SharedLoader(loader, seed, *self._sharing, self._begun, self._judges, used, slices, together)

    def _lease(self, data: Any, counts: bool = True) -> LeasedLoader:
        state, used = self._state, self._used
        _, workers = self._sharing
        self._loader = LeasedLoader(data, self._context, state, workers, used, self._begun, self._go_on, counts)
        return self._loader
