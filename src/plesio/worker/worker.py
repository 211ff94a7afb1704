"""`Worker`: what the training function is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, overload

import torch

from plesio.errors import ConfigurationError, StepCancelled, StopRun, as_utf8
from plesio.strategy.answers.codec import Codec
from plesio.tensors.after_step import Change
from plesio.worker.ahead import Ahead
from plesio.worker.data.source import SourceWrapper
from plesio.worker.data.use import DataUse
from plesio.worker.explaining import explain
from plesio.worker.given import How
from plesio.worker.guards.exchanged import unwatch
from plesio.worker.own_loops import OwnLoops
from plesio.worker.own_part import Share
from plesio.worker.warn import warn_at_end

if TYPE_CHECKING:
    from plesio.reading.reader import Reader

One = TypeVar("One")
Several = TypeVarTuple("Several")


class Worker(OwnLoops, Ahead):
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
        self._context.stop(f"worker {self._number} stopped the run{': ' if words else ''}{words}")

    def leave(self) -> None:
        """Leave the run in good order, as the others go on: for a machine that is to be taken away.

        It returns at once, also in a signal handler. The step under way is made. What this worker did since its last exchange
        is sent. The data that it holds go to others, and its seat is free. Then `train`, or the body of `ps.join`, ends by
        `ps.StopRun`, as at the end of the run. A worker of several processes leaves with its next exchange, all at once; one
        of `ps.Clients` when the client under way has had its turn. SIGTERM does this by itself (docs/failures.md).

        >>> def train(worker):
        ...     model = torch.nn.Linear(4, 1)
        ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        ...     for step in worker.steps(100):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(1, 4)).sum().backward()
        ...         optimizer.step()
        ...         if worker.rank == 1 and worker.version > 20:
        ...             worker.leave()
        >>> run = ps.run(train, "async_sgd", workers=2, engine=ps.Simulated("uniform"))
        >>> run.steps, [one.left for one in run.workers]
        (100, ['finished', 'left as told'])
        """
        self._context.process.tell_to_leave()

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
            for stepped in self._stepped:
                stepped()
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
                "worker.log under privacy=: what people's data say would leave as it is, without noise; leave it out, and judge "
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
          workers, so give each worker the same one, whole. Data that you read or split yourself is not for prepare.
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
        how = How(after_step, trainable == "all", share, on_write == "warn", tables)
        returned = self._prepare(given, how)
        return returned[0] if len(returned) == 1 else returned

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

    def end(self) -> None:
        """The training function returned."""
        self._metrics.reach()
        self._metrics.flush()
        for one in (self._loader, *self._able):
            if one is not None:
                one.leave()
        if self._exchange is not None:
            self._warn_of_unread()
            unwatch(self._exchange.replica.trained)
            self._exchange.end()
        else:
            self._context.leave()

    def reader(self, codec: str | Codec | None = None) -> Reader:
        """A reader of this run (`ps.read`), for what is beside training: an actor that follows the newest policy.

        The run has to be started with `readers=`. What is read depends on when, so that a replay has none.

        Raises:
            ConfigurationError: the run has no readers.
        """
        if self._context.read_at is None:
            raise ConfigurationError(
                "worker.reader(): the run has no readers; start it with readers=True. Simulated runs and replays have none"
            )
        from plesio.reading.reader import Reader  # and with it compiled kernels

        return Reader(self._context.read_at, f"worker {self._number}", codec)

    def _warn_of_unread(self) -> None:
        for one in self._prepared.values() if self._state.steps else ():
            if isinstance(one, SourceWrapper) and not one.looped:
                warn_at_end(
                    f"worker {self._number} never read a prepared loader (over a {type(one.dataset).__name__}): loop over what "
                    "prepare returned; a loop over the loader that it was given trains each worker on all of the data"
                )


@contextmanager
def taking_part(worker: Worker) -> Iterator[None]:
    """Inside, the training function is called. It ends when it returns, or with the run."""
    try:
        yield
    except StopRun:
        worker._state.early = worker._state.leaving and not worker._state.stopped
    except Exception as error:
        explain(error, worker._loader, [one.where() for one in worker._able])
        raise
    worker.end()


def cut_off(worker: Worker) -> None:
    """The training function ends in the middle of anything: send what it has logged."""
    worker._metrics.flush()
