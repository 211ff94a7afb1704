"""`Worker`: what the training function is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from plesio.errors import ConfigurationError, StepCancelled, StopRun, as_utf8
from plesio.tensors.model import device_of
from plesio.worker.context import WorkerContext
from plesio.worker.data_use import DataUse
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.guards.guards import Guards
from plesio.worker.loader import LeasedLoader
from plesio.worker.optimizer import ExchangedOptimizer
from plesio.worker.seeding import seed_device
from plesio.worker.state import WorkerState

LOG_S = 0.1
"""How often logged numbers are sent on."""
SEVERAL = "a run trains one model with one optimizer; several, as a GAN's two, are not supported yet"
ORDER = "worker.prepare(model, optimizer, loader)"
ALL_TAKEN = (
    "an epoch may hold no batch for a worker: others took all of them, or it was done before the run was resumed. Then next() "
    "of its iterator raises this at once; let a loop end each epoch: while True: for batch in loader: ..., and look at the data "
    "in the loader given to prepare"
)
TWICE = "mark a variable ready only once"
"""DistributedDataParallel raises this if a parameter gets a gradient after its bucket was reduced."""
ONE_FORWARD = (
    "Under all-reduce, return tensors, or tuples, lists or dicts of them, from forward (no object of another class), use all "
    "parameters that the loss needs inside one forward pass of the prepared model (not a model.scale read outside of it), and "
    "call backward() before the next one (for two towers: one forward pass that computes both); or take a strategy that leaves "
    "this free, such as sync_sgd"
)


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

    def __init__(self, context: WorkerContext) -> None:
        self.rank = context.rank
        self.workers = context.workers
        self.seed = context.seed
        self.server_pid = context.server_pid
        self._context = context
        self._state = context.state
        self._exchange: Exchange | None = None
        self._loader: LeasedLoader | None = None
        self._used = DataUse()
        self._in_step = False
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._logged_steps = self._sent_steps = 0
        self._sent_s = context.now_s()

    # What the training function may ask

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

        In lock step, and with data="shards", it counts this worker's own part. It moves when the loader is given more data.

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
        if self._exchange is None:
            raise ConfigurationError(
                "worker.stop before prepare: this worker takes no part in the run yet; prepare first, or raise an error"
            )
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
        finally:
            self._in_step = False

    def log(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Record numbers (or one-element tensors), such as loss=loss or {"val/loss": loss}.

        `run.logged` has their means over 0.1 s each, or over longer spans where these would be more than 100,000.

        Raises:
            ConfigurationError: something that is no number.
        """
        for name, value in {**(metrics or {}), **named}.items():
            try:
                number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ConfigurationError(
                    f"worker.log({name}=...): {type(value).__name__} is not one number ({error})"
                ) from error
            if name == "loss":
                self._state.loss = number
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] = self._counts.get(name, 0) + 1
        self._logged_steps = self._state.steps
        if self._context.now_s() - self._sent_s > LOG_S:
            self._flush()

    def _flush(self) -> None:
        if not self._sums:
            return
        means = {as_utf8(name): total / self._counts[name] for name, total in self._sums.items()}
        self._context.logged(self._logged_steps - self._sent_steps, means)
        self._sums.clear()
        self._counts.clear()
        self._sent_steps = self._logged_steps
        self._sent_s = self._context.now_s()

    # Taking part

    def prepare(
        self, model: nn.Module, optimizer: Optimizer | None = None, loader: Any = None, *more: Any
    ) -> tuple[nn.Module, Any, Any]:
        """Hand a model, its optimizer and its data to the run; use what is returned in their place.

        A run has one model, one optimizer and one loader; anything `more` is refused.

        Args:
            model: stays the same object (under all-reduce it comes back in a wrapper, which is what must be called); its
                tensors move to the run's memory. It may be on a device of its own, except under hogwild: move it there
                before prepare, `model.to(f"cuda:{worker.rank}")`. It stays there, and gradients or weights are copied
                through the CPU's memory. The global weights, the server and `evaluate` are on the CPU.
            optimizer: any torch.optim optimizer. State that it already holds (loaded, or trained before) goes to where
                the optimizer steps; if that is the server, it is worker 0's.
            loader: a DataLoader, or anything with a length and items. Its batches are shared out among the workers, so
                give each worker the same one, whole; None for data that you read yourself, or that is split by rank.

        Returns:
            The model to call, an optimizer whose `step()` exchanges as the strategy says, and this worker's loader: always
            these three; None where there is no loader.

        Notes:
            All workers start from the weights of worker 0, or of the lowest-numbered worker that is alive. Clipping applies to
            this worker's own gradient; under all-reduce, to the mean. Where the optimizer steps at the server, `.grad` is
            undefined after `step()`, and each version replaces what the loop wrote into parameters. docs/api.md has the rest.

        Raises:
            ConfigurationError: prepared twice, no optimizer, more than one, an empty loader, tensors that cannot be shared
                or that overlap in memory, an optimizer (or its state) that cannot go to the server or that differs from
                the other workers'.
            ModelMismatchError: this worker's model is not the other workers'.
            SharedMemoryError: the host has too little shared memory.
        """
        if self._exchange is not None:
            raise ConfigurationError(
                "prepare was called before; one model is trained in a run: for several folds call ps.run once each; "
                f"{SEVERAL}"
            )
        _check_arguments(optimizer, loader, more)
        assert optimizer is not None
        seed_device(device_of(model))
        if loader is not None:
            self._loader = LeasedLoader(
                loader,
                self._context.lease,
                self.seed,
                self.workers,
                self._used,
                self._state.reseed,
                partial(_trained_since, self._state, optimizer),
            )
        guards = Guards(model, optimizer)
        self._exchange, model = self._context.join(model, optimizer, self._used)
        if self._exchange.cancels:
            for module in model.modules():
                if next(module.children(), None) is None:
                    module.register_forward_pre_hook(_CancellationCheck(self))
        guards.prepared(not self._exchange.local, lambda: self.workers > 1 and not self._used.batches)
        if self.rank == 0 and not self._exchange.shares_parameters:
            guards.warn_of_outside()
        return model, ExchangedOptimizer(optimizer, self._exchange, guards.before_step), self._loader

    def end(self) -> None:
        """The training function returned."""
        self._logged_steps = self._state.steps
        self._flush()
        if self._loader is not None:
            self._loader.leave()
        if self._exchange is not None:
            self._exchange.end()
        else:
            self._context.leave()


def _check_arguments(optimizer: Any, loader: Any, more: tuple[Any, ...]) -> None:
    """Raise `ConfigurationError` unless `prepare` was given one optimizer, and at most one loader."""
    given = (optimizer, loader, *more)
    if sum(isinstance(one, Optimizer) for one in given) > 1:
        raise ConfigurationError(f"prepare was given two optimizers; {SEVERAL}")
    schedule = next((one for one in given if isinstance(one, LRScheduler)), None)
    if schedule is not None:
        raise ConfigurationError(
            f"prepare was given a {type(schedule).__name__}; it takes no schedules: make it with the optimizer that prepare "
            "returns, and step it as always"
        )
    if optimizer is None:
        raise ConfigurationError(f"prepare was given no optimizer; it is {ORDER}")
    if not isinstance(optimizer, Optimizer):
        said = f"prepare was given {type(optimizer).__name__} for an optimizer"
        if isinstance(loader, Optimizer):
            raise ConfigurationError(f"{said} and {type(loader).__name__} for a loader; it is {ORDER}")
        raise ConfigurationError(f"{said}; allowed: any torch.optim.Optimizer")
    if any(isinstance(one, DataLoader) for one in more):
        raise ConfigurationError(
            "prepare was given a second loader; it shares out the data of one, that of the training: iterate another, such "
            "as that of the validation, as it is"
        )
    if more:
        raise ConfigurationError(
            f"prepare was given {', '.join(type(one).__name__ for one in more)} beyond model, optimizer and loader; "
            f"make a schedule with the optimizer that it returns; {SEVERAL}"
        )


@contextmanager
def taking_part(worker: Worker) -> Iterator[None]:
    """Inside, the training function is called. It ends when it returns, or with the run."""
    try:
        with suppress(StopRun):
            yield
    except StopIteration as error:
        if worker._loader is not None:  # else it is of an iterator that is none of ours
            error.args = (": ".join(filter(None, (str(error), ALL_TAKEN))),)
        raise
    except RuntimeError as error:
        if TWICE in str(error):
            error.args = (f"{error}\n{ONE_FORWARD}",)
        raise
    worker.end()


def cut_off(worker: Worker) -> None:
    """The training function ends in the middle of anything: send what it has logged."""
    worker._flush()


def _trained_since(state: WorkerState, optimizer: Optimizer) -> Callable[[], bool]:
    """The result tells whether a step or a backward pass came since this call; several passes may make one step."""
    parameters: list[torch.Tensor] = [one for group in optimizer.param_groups for one in group["params"]]
    before = [None if one.grad is None else (ref(one.grad), one.grad._version) for one in parameters]
    step = state.concluded()

    def left_a_gradient(parameter: torch.Tensor, then: tuple[ref[torch.Tensor], int] | None) -> bool:
        now = parameter.grad
        return now is not None and (then is None or then[0]() is not now or then[1] != now._version)

    return lambda: state.concluded() != step or any(map(left_a_gradient, parameters, before))


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
