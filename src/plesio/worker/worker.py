"""`Worker`: what the training function is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, overload

import torch
import torch.distributed as dist

from plesio.errors import ConfigurationError, StepCancelled, StopRun, as_utf8
from plesio.riders.counters import Counting
from plesio.riders.schedules import Scheduling
from plesio.strategy.answers.answer import COUNT, WHOLE
from plesio.tables.module import Table
from plesio.tensors.after_step import AfterStep, Applied, Change
from plesio.tensors.model import device_of
from plesio.worker.clients.accountant import tell
from plesio.worker.clients.description import Clients
from plesio.worker.clients.lent import LeasedClients
from plesio.worker.context import Taking, WorkerContext
from plesio.worker.counter import Counter
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.data.parts import SharedLoader, StreamLoader
from plesio.worker.data.source import SourceWrapper, is_stream, warn_of_processes
from plesio.worker.data.use import B, DataUse, one_ahead
from plesio.worker.exchanges.by_client import ClientExchange
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.explaining import explain, refuse_synchronised
from plesio.worker.given import Given
from plesio.worker.guards.exchanged import unwatch, watch
from plesio.worker.guards.guards import Guards
from plesio.worker.metrics import Metrics
from plesio.worker.optimizer import ExchangedOptimizer
from plesio.worker.own_part import OwnPart, Share
from plesio.worker.randomness.seeding import seed_device, step_seed
from plesio.worker.row_gradients import warn_of_frozen, zero_rows_too
from plesio.worker.schedule import RunSchedule
from plesio.worker.settings import go_on
from plesio.worker.shared_tables import SharedTables
from plesio.worker.warn import listed, warn, warn_at_end

One = TypeVar("One")
Several = TypeVarTuple("Several")


class Worker:
    """One replica of the training loop, as its training function sees it.

    The function is called once in each worker process, with its own `Worker`.

    Attributes:
        rank: this worker's number, from 0.
        workers: how many the run was started with.
        seed: the run's seed.
        server_pid: the process that holds the global parameters.
        island: the processes that this worker is made of, with ranks= (`plesio.worker.island.Island`).

    >>> data = [(torch.ones(2), k % 2) for k in range(64)]
    >>> def train(worker):
    ...     model = torch.nn.Linear(2, 2)
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ...     loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    ...     model, optimizer, loader = worker.prepare(model, optimizer, loader)
    ...     for inputs, labels in loader:  # this worker's share
    ...         optimizer.zero_grad()
    ...         loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    ...         loss.backward()
    ...         optimizer.step()  # the exchange happens here
    ...         worker.log(loss=loss)
    >>> ps.run(train, "async_sgd", workers=2, engine=ps.Simulated("uniform")).samples
    64
    """

    def __init__(self, context: WorkerContext) -> None:
        self.rank = context.rank
        self.workers = context.workers
        self.seed = context.seed
        self.server_pid = context.server_pid
        self.island = context.island
        self._sharing = (0, 1) if context.state.together > 1 else (context.rank, context.workers)
        self._context = context
        self._state = context.state
        self._exchange: Exchange | None = None
        self._loader: LeasedLoader | None = None
        self._clients: LeasedClients | None = None
        self._prepared: dict[int, Any] = {}  # by the identity of what was given
        self._schedules: list[RunSchedule] = []
        self._used = DataUse()
        self._shared = 0  # loaders beside the first
        self._in_step = False
        self._metrics = Metrics(context)

    # What the training function may ask

    @property
    def device(self) -> torch.device:
        """The device for this worker's model: one of the host's GPUs, by turns, or the CPU where there is none.

            model = Network().to(worker.device)  # before prepare

        A worker takes the GPU of its number among the workers of its host. Under `ps.join` torchrun (LOCAL_RANK) and SLURM
        (SLURM_LOCALID) tell that number; else it is the worker's `rank`.
        """
        return self.island.device

    @property
    def staleness(self) -> int:
        """Versions folded between the one this worker's last contribution was computed from and its own fold."""
        return self._state.staleness

    @property
    def version(self) -> int:
        """The version of the global parameters this worker computes from."""
        return self._state.version

    @property
    def epoch(self) -> float:
        """How far the run is through the data that `prepare` shares out: 2.5 in the middle of the third epoch.

        For learning-rate schedules. Fast workers take more steps than `len(loader)` says, so a schedule that counts steps
        ends before the training does: OneCycleLR then raises, CosineAnnealingLR rises again. A schedule by `epoch` is at
        the same point on all workers:

            schedule = LambdaLR(optimizer, lambda _: 0.5 * (1 + cos(pi * min(1.0, worker.epoch / EPOCHS))))

        In lock step, and with data="shards", it counts this worker's own part, and moves with each batch. Elsewhere it moves when
        the loader is given more data.

        Raises:
            ConfigurationError: prepare was given no loader.
        """
        if self._loader is not None:
            return self._loader.progress
        if self._exchange is None:
            return 0.0
        raise ConfigurationError(
            "worker.epoch counts the data that prepare shares out, and prepare was given no loader; count what you read "
            "yourself, or go by worker.version"
        )

    @property
    def discarded(self) -> int:
        """This worker's contributions that did not count."""
        return self._state.discarded

    @property
    def steps_before(self) -> int:
        """Steps of this worker before the run was resumed, so that a schedule that counts steps can catch up."""
        return self._state.steps_before

    @property
    def stopped(self) -> bool:
        """Whether the run is over, for loops of your own: the next `optimizer.step()`, or the loader's next request for
        data, raises `ps.StopRun`, which ends `train`."""
        return self._state.stopped

    def stop(self, reason: str = "") -> None:
        """End the whole run, as if its `until=` were reached; `reason` is reported as why it ended.

        For early stopping: where a worker just returns from `train`, only that worker leaves and the others go on.

            for epoch in range(EPOCHS):
                for inputs, labels in loader:
                    ...
                if worker.rank == 0:      # if several stop the run, the first reason counts
                    loss = judge(model)
                    best, waited = min(best, loss), 0 if loss < best else waited + 1
                    if waited == 5:
                        worker.stop("no better for 5 epochs")

        It returns at once. Every worker goes on until its next exchange or request for data: there `stopped` becomes True,
        and the request after that raises `ps.StopRun`. (Strategies that work in rounds give out data for up to a second
        more, so that the last round is whole.) Work until then counts. If checkpoints are kept, one is written. A simulated
        run ends at exactly that virtual time. After the run is over, and in a replay, the call does nothing.

        Raises:
            ConfigurationError: before prepare; or a reason that is no text.
        """
        if not isinstance(reason, str):
            raise ConfigurationError(
                f"worker.stop({type(reason).__name__}): the reason is text, such as 'no better for 5 epochs'"
            )
        self._exchange_for("stop")
        words = as_utf8(" ".join(reason.split()))
        self._context.stop(f"worker {self.rank} stopped the run{': ' if words else ''}{words}")

    @property
    def cancelled(self) -> bool:
        """Whether the current step no longer counts; only ever True under a strategy that cancels late work."""
        return self._exchange is not None and self._exchange.cancelled()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Marks one step, so that it can be left early when it no longer counts.

        Inside the block, every layer checks before its forward pass whether the step was cancelled. If so, the block ends
        there, its gradients are dropped, and the loop goes on with the next batch. Compiled layers (torch.compile) do not
        check.

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
            self._tables.settle()
        finally:
            self._in_step = False

    def log(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Record numbers (or one-element tensors), such as loss=loss or {"val/loss": loss}.

        `run.logged` has their means over 0.1 s each, or over longer spans where these would be more than 100,000.

        Raises:
            ConfigurationError: something that is no number; or under privacy=, which would not cover it.
        """
        if self._exchange is not None and self._exchange.private:
            raise ConfigurationError(
                "worker.log under privacy=: what clients' data say would leave as it is, without noise; leave it out, and judge "
                "versions by evaluate=, on data that anybody may know"
            )
        self._metrics.add({**(metrics or {}), **named})

    # Taking part

    @overload
    def prepare(
        self,
        given: One,
        /,
        *,
        after_step: Change | None = ...,
        trainable: str = ...,
        share: Share | None = ...,
        on_write: str = ...,
        tables: int | None = ...,
    ) -> One: ...

    @overload
    def prepare(
        self,
        *given: *Several,
        after_step: Change | None = ...,
        trainable: str = ...,
        share: Share | None = ...,
        on_write: str = ...,
        tables: int | None = ...,
    ) -> tuple[*Several]: ...

    def prepare(  # type: ignore[misc]  # mypy sees no signature that takes both
        self,
        *given: Any,
        after_step: Change | None = None,
        trainable: str = "now",
        share: Share | None = None,
        on_write: str = "refuse",
        tables: int | None = None,
    ) -> Any:
        """Hand to the run what the training loop has, in any order; use what is returned, in that order, in its place.

            model, optimizer, loader = worker.prepare(model, optimizer, loader)
            generator, critic, g_optimizer, c_optimizer = worker.prepare(generator, critic, g_optimizer, c_optimizer)
            scheduler = worker.prepare(scheduler)  # one thing in, one thing out

        Args:
            given: of each kind one or several; None stays None. A scheduler that is made later, with what this returned, can be
                given to a second call; if `len(loader)` was asked by then, it counts one worker's part of the batches.
            after_step: a function of the parameters by name that changes them in place, such as a clamp or a mask. The server
                applies it to every new version, and a worker after each step of its own optimizer.
            trainable: "now": what needs a gradient; "all": whatever the optimizer holds, so that it may be unfrozen later
                (adapters that take turns, gradual unfreezing).
            share: what travels, where each worker steps on its own: names of tensors or modules ("body"), patterns
                ("*.weight"), or a function of a tensor's name and the tensor. The rest stays the worker's own, and under
                `ps.Clients` each client's: it is never sent, and neither a version nor `run.state_dict` has it
                (docs/federated.md).
            on_write: what is done where the loop writes into weights by hand and the next version would replace that: "refuse"
                raises at the next step, "warn" warns and lets it go.
            tables: each `nn.Embedding(sparse=True)` and `nn.EmbeddingBag(sparse=True)` with more rows than this becomes a table
                at the server (docs/tables.md). Its rows step as its optimizer says: SGD, Adagrad or SparseAdam.

        What is done of each:

        - A module stays the same object (under all-reduce it comes back in a wrapper, which is what must be called); its tensors
          move to the run's memory, and keep their memory format (channels last), which must be the same on every worker. It may
          be on a device of its own, except under hogwild: move it there before prepare, `model.to(worker.device)`. It stays
          there, and gradients or weights are copied through the CPU's memory. The global weights, the server and `evaluate` are
          on the CPU. Several modules are one model, a `torch.nn.ModuleList` of them: that is what `evaluate` is given, and in
          `run.state_dict` their names begin with their numbers.
        - An optimizer is any of torch.optim's. Its `step()` exchanges as the strategy says. State that it already holds (loaded,
          or trained before) goes to where it steps; if that is the server, it is worker 0's. The step of one of several is an
          exchange of its own parameters: those of the others are left alone.
        - A loader (the first one) is a DataLoader, or anything with a length and items. Its batches are shared out among the
          workers, so give each worker the same one, whole. Data that you read yourself, or that is split by rank, is not for
          prepare.
        - A scheduler goes, at each `step()`, to where the run is (`plesio.worker.schedule`), so that it ends where the
          training ends.

        Notes:
            All workers start from the weights of worker 0, or of the lowest-numbered worker that is alive. Clipping applies to
            this worker's own gradient; under all-reduce, to the mean. Where the optimizer steps at the server, `.grad` is
            undefined after `step()`, and what the loop writes into parameters is refused. docs/api.md has the rest.

        Raises:
            ConfigurationError: prepared twice, no model or optimizer, an empty loader, tensors that cannot be shared or that
                overlap in memory, an optimizer (or its state) that cannot go to the server or that differs from the other
                workers', a scheduler of another optimizer.
            ModelMismatchError: this worker's model is not the other workers'.
            SharedMemoryError: the host has too little shared memory.
        """
        if on_write not in ("refuse", "warn"):
            raise ConfigurationError(f"prepare(on_write={on_write!r}): 'refuse' or 'warn'")
        if trainable not in ("now", "all"):
            raise ConfigurationError(f"prepare(trainable={trainable!r}): 'now' or 'all'")
        sorted_out = Given.sorted(given)
        if self._exchange is None:
            sorted_out.check()
            empty = sorted_out.convert(tables) if tables is not None else []
            self._take_part(sorted_out, after_step, trainable == "all", share).lets_writes_go = on_write == "warn"
            self._prepared |= {id(one): one for one in empty}
        else:
            self._prepare_more(sorted_out, self._exchange)
        for one in sorted_out.schedulers:
            if id(one) not in self._prepared:
                by_round, place = self._clients is not None, len(self._schedules)
                later = id(one.optimizer) not in self._prepared
                schedule = RunSchedule(one, lambda: self._loader, self._state, by_round, place, later)
                self._prepared[id(one)] = schedule
                self._schedules.append(schedule)
        returned = tuple(None if one is None else self._prepared[id(one)] for one in given)
        return returned[0] if len(returned) == 1 else returned

    def _exchange_for(self, call: str) -> Exchange:
        """The exchange, for a method that is asked after prepare."""
        if self._exchange is None:
            raise ConfigurationError(f"worker.{call} before prepare: prepare the model and the optimizer first")
        return self._exchange

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
        others = [*given.modules, *given.loaders, *given.clients]
        if any(id(one) not in self._prepared for one in others):
            raise ConfigurationError(
                "prepare was called before, and takes only schedulers then: a run trains what the first call was given; for "
                "several folds call ps.run once each"
            )

    def _take_part(self, given: Given, after_step: Change | None, frozen_too: bool, share: Share | None) -> Exchange:
        model, optimizer = given.model, given.optimizer
        own = OwnPart.of(model, optimizer, share, bool(given.clients)) if share is not None else None
        if own is not None:
            given.check_own(list(own.tensors), self.island.ranks)
        self._begun = partial(self._state.trained_since, optimizer)
        self._judges = lambda: not any(one.training for one in given.modules)
        after = AfterStep.of(after_step) if after_step is not None else None
        if self.workers > 1 and not dist.is_initialized():
            refuse_synchronised(model)
        seed_device(device_of(model))
        streams = [one for one in given.loaders if is_stream(one)]
        others = [one for one in given.loaders if not is_stream(one)]
        if self.rank == 0 and self.server_pid:  # the workers are processes of this host
            warn_of_processes(given.loaders, self.workers)
        if others:
            self._lease(others[0])
        guards = Guards(model, optimizer, frozen_too)
        scheduling = self._state.riders.of(Scheduling)
        scheduling.begin(optimizer)
        self._set_again = partial(go_on, optimizer, scheduling, self._schedules)
        self._tables = SharedTables(model, self._state, self._context.inline)
        exchange, ours = self._context.join(
            Taking(model, optimizer, after, frozen_too, own, bool(given.clients)), self._used
        )
        self._exchange = exchange
        if own is not None and self._state.before and not given.clients:
            warn(
                f"worker {self.rank} goes on with {listed(list(own.tensors))} as its script made that: no checkpoint has what "
                "share= leaves out; load it from a file of the worker's own"
            )
        if exchange.rows is not None:
            zero_rows_too(model)
            warn_of_frozen(model)
        if after is not None:
            exchange.after_step = Applied(after, exchange.replica.layout.specs)
        given.check_strategy(exchange)
        if exchange.may_cancel:
            for module in model.modules():
                if next(module.children(), None) is None:
                    module.register_forward_pre_hook(_CancellationCheck(self))
        if not exchange.any_optimizer:
            first_of_several = self.workers > 1 and self.rank == 0 and not exchange.by_client
            watch(exchange.replica.trained, exchange, self._state if first_of_several else None)
        guards.prepared(
            replaces=not exchange.local,
            outside=self.rank == 0 and not exchange.shares_parameters,
            reads_alone=lambda: self.workers > 1 and not (self._used.batches or self._used.samples),
            go_on=self._set_again,
        )
        several = len(given.optimizers) > 1
        fetch = self._context.optimizer_state
        self._prepared = {
            **{id(one): one for one in given.modules},
            id(model): ours,
            **{
                id(one): ExchangedOptimizer(one, exchange, guards.before_step, fetch, several)
                for one in given.optimizers
            },
            **{id(one): self._loader for one in others[:1]},
            **{id(one): self._parted(one, DataUse()) for one in [*others[1:], *streams]},
            **{id(one): self._lent(one, model, own) for one in given.clients},
        }
        for one in given.optimizers if self._tables.any else ():
            self._prepared[id(one)].register_step_post_hook(self._tables.settle)
        return exchange

    def _lent(self, clients: Clients, model: torch.nn.Module, own: OwnPart | None) -> LeasedClients:
        assert isinstance(self._exchange, ClientExchange), "a strategy by client has a server"
        begins = self._begin_client
        self._clients = LeasedClients(clients, self._context, self._exchange, self._used, model, begins, own)
        return self._clients

    def _begin_client(self, round: int) -> None:
        for one in self._schedules:
            one.begin_client(round)

    def _go_on(self) -> None:
        """The first batch: of a resumed run, what was read before counts, and schedules go to where they were."""
        assert self._loader is not None, "it gives the batch"
        self._loader.read += self._state.batches_before
        for one in self._schedules:
            one.go_on(len(self._schedules))
        self._set_again()

    def share(self, loader: One) -> One:
        """This worker's part of another loader, at any time: for a loader made anew each epoch, or one beside the first.

            for epoch in range(EPOCHS):
                for inputs, labels in worker.share(DataLoader(chosen(epoch), batch_size=32, shuffle=True)):
                    ...

        Each worker gives it the same data, in the same order of calls. A pass without gradients, or in eval mode, is over all the
        data on each worker, and so is one in which nothing was trained on this worker's part. A dead worker's part is not made
        up for. Samples are counted where the prepared loader, if any, was not read yet.

        Raises:
            ConfigurationError: before prepare, or no data that can be shared out.
        """
        self._exchange_for("share")
        used = self._used if self._loader is None or not self._loader.looped else DataUse()
        part: One = self._parted(loader, used)
        return part

    def _parted(self, loader: Any, used: DataUse) -> Any:
        if is_stream(loader):
            if self.island.ranks > 1 and self._state.together == 1:
                raise ConfigurationError(
                    f"a {type(loader.dataset).__name__} has no numbered samples, of which each process of a worker could take "
                    "its slice of a batch; with ranks= give prepare a data set with a length and items, or leave the stream out "
                    "of prepare and split its batches by worker.island.parts"
                )
            skipped = self._state.samples_before // self._state.together
            return StreamLoader(loader, self.rank, self.workers, self._used, skipped, self.island.all_have)
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

    def ahead(self, batches: Iterable[B], ids: Callable[[B], Mapping[Table, torch.Tensor]]) -> Iterator[B]:
        """The same batches; the rows of tables that the next one needs travel while the loop is at one.

            for ids, labels in worker.ahead(loader, lambda batch: {net.ids: batch[0]}):
                ...

        Rows that were asked for ahead are those of before this worker's own step: stale by 1, as others' steps make them, too.
        So a worker that is alone asks for nothing ahead. Nor is anything asked for where rows may be of several steps
        (`local_sgd`), the worker goes on while its answer travels, or the loop has no gradients (`torch.no_grad()`). A loop that
        steps once for several batches gains nothing: rows are asked for ahead once a step. Under `rows="with"` in rounds rows
        come after the fold, and only their keys travel ahead.

        Args:
            batches: the prepared loader, or any other iterable.
            ids: of a batch, what is to be looked up in which table of the prepared model. What it leaves out is pulled when it is
                looked up.

        Raises:
            ConfigurationError: before prepare, a table of another model, or ids that are no tensor of int64 or int32.
        """
        exchange = self._exchange_for("ahead")
        if exchange.rows is None:
            raise ConfigurationError("worker.ahead asks for rows of tables, and the prepared model has none (ps.Table)")
        rows = exchange.rows
        if self.workers == 1 or rows.several_steps or exchange.late or not torch.is_grad_enabled():
            return iter(batches)
        return one_ahead(batches, self._used, lambda batch: rows.ask_ahead(ids(batch)))

    # Loops without a loader

    def steps(self, number: int) -> Iterator[int]:
        """The run's steps, for a loop that draws its own data: `for step in worker.steps(10_000)`.

        They are shared out among the workers as batches are, so that all together make as many steps as the script on its own:
        each exactly once, also where workers die. A resumed run goes on where it was. Say `worker.count(samples)` in the loop.

        Args:
            number: how many steps the run has, the same on every worker.

        Raises:
            ConfigurationError: before prepare, beside a loader given to prepare, or another number than before.
        """
        self._exchange_for("steps")
        if not COUNT.holds(number):
            raise ConfigurationError(f"worker.steps({number!r}): {COUNT.words}")
        loader = self._loader if self._loader is not None else self._lease(range(number), counts=False)
        if not isinstance(loader.dataset, range):
            raise ConfigurationError(
                "worker.steps beside a prepared loader: the run's steps are its batches; loop over it"
            )
        if len(loader.dataset) != number:
            raise ConfigurationError(
                f"worker.steps({number}) after worker.steps({len(loader.dataset)}): a run has one number of steps; loop "
                "again over the same"
            )
        return iter(loader)

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs that are left: `for epoch in worker.epochs(5)`. A resumed run, or a worker that comes late, begins with
        the one that the run is in.

        Raises:
            ConfigurationError: prepare was given no loader, or `number` is no whole number.
        """
        if self._loader is None:
            raise ConfigurationError(
                "worker.epochs counts the data that prepare shares out, and prepare was given no loader; loop over "
                "worker.steps(number)"
            )
        if not WHOLE.holds(number):
            raise ConfigurationError(f"worker.epochs({number!r}): {WHOLE.words}")
        first = self._loader.epochs = max(self._loader.epochs, int(self._loader.find_out()))
        for one in self._schedules:
            one.go_to(first)  # by epoch; one that goes by batch catches up at its first call
        yield from range(first, number)

    def count(self, samples: int) -> None:
        """Tell how many samples this step used, where the loop draws its own data: for throughput, `Until(samples=)`, weights by
        samples, and the report. Beside a prepared loader it is told in place of what that counts, such as a batch's tokens: then
        those are what a contribution weighs by, in `sync_sgd` and wherever samples do.

        Say it before `optimizer.step()`; after it, only where contributions of several workers do not weigh by samples.

        Raises:
            ConfigurationError: clients count their own, `samples` is no whole number, or the step that they are to weigh is
                exchanged already.
        """
        if not WHOLE.holds(samples):
            raise ConfigurationError(f"worker.count({samples!r}): {WHOLE.words}")
        if self._clients is not None:
            raise ConfigurationError("worker.count beside clients: their samples are counted already")
        if self._used.late is None:
            self._used.late = self._state.steps > 0  # the first step came before its count
            if self._used.late and self._exchange is not None and self._exchange.weighs and self._state.draws is None:
                raise ConfigurationError(
                    f"worker.count(samples={samples}) after optimizer.step(): contributions weigh by their samples here, and the "
                    "step's is sent by then; say worker.count before optimizer.step(), from the first step on"
                )
        self._used.said += samples

    def contribute(self, samples: int | None = None) -> None:
        """Exchange now what this worker's local steps moved since the last time, where the optimizer steps in the worker: for a
        loop over data of its own under `fedavg` and the others, one call a round. Returns when the next version is there.

        Args:
            samples: how many it trained on, which is its weight; None: those counted by `worker.count`, or else steps. 0 counts
                for nothing. Say it on every worker or on none.

        Raises:
            ConfigurationError: before prepare, beside `ps.Clients`, under a strategy that exchanges gradients, `samples` is no
                whole number, or it is 0 for all workers of a round.
            StopRun: the run is over; let it pass.
        """
        exchange = self._exchange_for("contribute")
        if self._clients is not None:
            raise ConfigurationError("worker.contribute beside ps.Clients: a client contributes when its turn ends")
        if samples is not None and not WHOLE.holds(samples):
            raise ConfigurationError(f"worker.contribute(samples={samples!r}): {WHOLE.words}")
        if self._context.by_round:
            self._metrics.flush()  # what the head is told of this round
        exchange.contribute(samples)
        if (spent := exchange.spent()) is not None:
            tell(self._context, *spent)

    def counter(self, name: str) -> Counter:
        """A counter that all workers share: `games = worker.counter("episodes")`, then `while games.value < 10_000:` and
        `games.add(1)`. It stands in checkpoints, and a replay counts the same. Each worker may go on for one more step before
        it hears that the number is reached; `worker.steps` is exact.

        Raises:
            ConfigurationError: before prepare, more than 4 counters, a name that is not 1 to 16 ASCII characters, or a strategy
                without a server that folds.
        """
        if not self._exchange_for("counter").counts:
            raise ConfigurationError(
                "worker.counter needs a server that folds, and under this strategy workers fold among themselves; loop over "
                "worker.steps(number), which shares out the run's steps under every strategy"
            )
        return Counter(name, self._state.riders.of(Counting))

    def end(self) -> None:
        """The training function returned."""
        self._metrics.reach()
        self._metrics.flush()
        for one in (self._loader, self._clients):
            if one is not None:
                one.leave()
        if self._exchange is not None:
            self._warn_of_unread()
            unwatch(self._exchange.replica.trained)
            self._exchange.end()
        else:
            self._context.leave()

    def _warn_of_unread(self) -> None:
        for one in self._prepared.values() if self._state.steps else ():
            if isinstance(one, SourceWrapper) and not one.looped:
                warn_at_end(
                    f"worker {self.rank} never read a prepared loader (over a {type(one.dataset).__name__}): loop over what "
                    "prepare returned; a loop over the loader that it was given trains each worker on all of the data"
                )


@contextmanager
def taking_part(worker: Worker) -> Iterator[None]:
    """Inside, the training function is called. It ends when it returns, or with the run."""
    try:
        with suppress(StopRun):
            yield
    except Exception as error:
        explain(error, worker._loader)
        if worker._clients is not None and (client := worker._clients.turn) is not None:
            error.add_note(f"(in the turn of client {client.id}, round {client.round})")
        raise
    worker.end()


def cut_off(worker: Worker) -> None:
    """The training function ends in the middle of anything: send what it has logged."""
    worker._metrics.flush()


class _CancellationCheck:
    """Before a layer's forward pass: leave the step if it was called off. It is not saved or copied with the model."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, *_: object) -> None:
        if torch.compiler.is_compiling():
            return
        if self._worker._in_step and self._worker.cancelled:
            raise StepCancelled("this step no longer counts")

    def __reduce__(self) -> Any:
        return getattr, ({}, "get")  # it loads where there is no plesio; {}.get(module, inputs) gives the inputs back
