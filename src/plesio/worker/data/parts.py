"""Data that nobody leases: a stream, and loaders beside the first. Each worker reads every n-th of it.

A dead worker's part is not read by others, and this data is in no count of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import InitVar, dataclass
from itertools import islice
from math import ceil
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from plesio.errors import ConfigurationError
from plesio.worker.data.grouped import GroupedOrder, StepBatches
from plesio.worker.data.making import BatchMaker, whole_pass
from plesio.worker.data.order import BatchOrder, slice_of
from plesio.worker.data.source import SourceWrapper, as_loader, settings_of
from plesio.worker.data.use import END, DataUse
from plesio.worker.island import Island
from plesio.worker.state import WorkerState


@dataclass(eq=False, repr=False)
class SharedLoader(SourceWrapper):
    """A loader beside the first: yields this worker's part of each pass, or all of it where nothing is trained on it.

    - A pass without gradients, or while the model is in eval mode, is over all the data, in order. A step there is refused.
    - Any other pass begins with this worker's part. If nothing was trained on that, the others' parts follow.

    A lone worker's is the loader itself.

    `begun` is `trained_since` of this worker; `judges`: whether the model is in eval mode; `used` is told of what was trained on;
    `slices`: as `WorkerState.parts`, of batches that are trained on; `together`: as `WorkerState.together`.
    """

    _given: Any
    seed: InitVar[int]
    _number: int
    _workers: int
    _begun: Callable[..., Callable[[], bool]]
    _judges: Callable[[], bool]
    _used: DataUse
    _slices: Callable[[], tuple[int, int]] = lambda: (0, 1)
    _together: int = 1

    def __post_init__(self, seed: int) -> None:
        self._source = as_loader(self._given)
        self._order = BatchOrder(self._source, seed)
        self._shares: BatchOrder | GroupedOrder = (
            GroupedOrder(self._order, self._together) if self._together > 1 else self._order
        )
        self._maker = BatchMaker(self._source)
        self._passes = 0
        self._whole = self._workers == self._together == 1  # whether the last pass was over all

    def __len__(self) -> int:
        """How many batches a pass has, as the last one was; an equal share, where that was a part."""
        whole = self._whole or self._sees_all()
        return self._order.total if whole else ceil(self._shares.total / self._workers)

    def _sees_all(self) -> bool:
        return not torch.is_grad_enabled() or self._judges()

    def __iter__(self) -> Iterator[Any]:
        self.looped = True
        if self._workers == 1 and self._slices()[1] == 1:
            batches = whole_pass(self._given, self._source)
            return batches if self._sees_all() else self._counted(batches)
        epoch, self._passes = self._passes, self._passes + 1
        numbers = range(self._order.total)
        if self._sees_all():
            return self._untrained(epoch, numbers)
        return self._part(epoch, range(self._shares.total)[self._number :: self._workers])

    def _part(self, epoch: int, own: range) -> Iterator[Any]:
        self._whole = False
        if not (yield from self._counted(self._made(epoch, own, *self._slices()))):
            yield from self._untrained(
                epoch, (one for one in range(self._order.total) if one % self._workers != self._number)
            )

    def _counted(self, batches: Iterator[Any]) -> Generator[Any, None, bool]:
        """The same batches; returns whether any was trained on."""
        trained, read = self._begun(), 0
        for batch in batches:
            read += (size := _size(batch))
            self._used.samples += size
            yield batch
        if not (any_trained := trained()):
            self._used.samples -= read
        return any_trained

    def _untrained(self, epoch: int, numbers: Iterable[int]) -> Iterator[Any]:
        """Batches of any worker's part."""
        self._whole = True
        trained = self._begun(True)  # an attack's backward pass in eval mode leaves gradients, and trains nothing
        for batch in self._made(epoch, numbers):
            yield batch
            if torch.is_grad_enabled() and trained():
                raise ConfigurationError(
                    "a step was made from a batch of a loader beside the first that every worker is given: each would train on "
                    "all of it. Call model.train() before the loop, and train from the first batch of a pass on, so that each "
                    "worker is given its part; or have at least a batch for each worker"
                )

    def _made(self, epoch: int, numbers: Iterable[int], part: int = 0, parts: int = 1) -> Iterator[Any]:
        if parts == 1:
            batches = self._order.batches(epoch)
            return self._maker.over(batches[number] for number in numbers)
        shares = self._shares.batches(epoch)
        return self._maker.over(_slice(shares[number], part, parts) for number in numbers)


@dataclass(eq=False, repr=False)
class StreamLoader(SourceWrapper):
    """Yields this worker's part of a DataLoader over an IterableDataset; its other attributes are the user's DataLoader's. The
    part is what the data set itself gives for `shard(workers, number)`, if it has that; else every n-th element. What was used
    before the run was resumed is read, and left out. Where workers all-reduce, a pass that trains ends when one of them has no
    more."""

    _source: DataLoader[Any]
    number: InitVar[int]
    _workers: int
    _used: DataUse
    state: InitVar[WorkerState]
    island: InitVar[Island]

    def __post_init__(self, number: int, state: WorkerState, island: Island) -> None:
        source, workers = self._source, self._workers
        if island.ranks > 1 and state.together == 1:
            raise ConfigurationError(
                f"a {type(source.dataset).__name__} has no numbered samples, of which each process of a worker could take "
                "its slice of a batch; with ranks= give prepare a data set with a length and items, or leave the stream out "
                "of prepare and split its batches by worker.island.parts"
            )
        self._skipped, self._all_have = state.samples_before // state.together, island.all_have
        self._loader: DataLoader[Any] = DataLoader(
            _part(source.dataset, number, workers),
            batch_size=source.batch_size,
            drop_last=source.drop_last,
            generator=source.generator if workers == 1 else None,
            **settings_of(source),
        )

    def __len__(self) -> int:
        """An equal share; TypeError, as of the data set, if that has no length."""
        return ceil(len(self._source) / self._workers)

    def __iter__(self) -> Iterator[Any]:
        self.looped = True
        return self._given_out(iter(self._loader))

    def _given_out(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            batch = next(batches, END)
            more = batch is not END
            if not (self._all_have(more) if torch.is_grad_enabled() else more):
                return
            size = 1 if self._source.batch_size is None else _size(batch) or self._source.batch_size
            if self._skipped:
                self._skipped = max(0, self._skipped - size)
                continue
            if torch.is_grad_enabled():
                self._used.samples += size
            yield batch


class _EveryNth(IterableDataset[Any]):
    def __init__(self, dataset: Any, number: int, workers: int) -> None:
        self.dataset = dataset
        self._number, self._workers = number, workers

    def __iter__(self) -> Iterator[Any]:
        """In each of the DataLoader's processes: the n-th of what it reads."""
        return islice(self.dataset, self._number, None, self._workers)


def _part(dataset: Any, number: int, workers: int) -> Any:
    shards = getattr(dataset, "num_shards", None)  # of Hugging Face's data sets, which refuse more parts than shards
    if callable(getattr(dataset, "shard", None)) and (shards is None or shards >= workers):
        return dataset.shard(workers, number)
    return _EveryNth(dataset, number, workers) if workers > 1 else dataset


def _slice(batches: Any, part: int, parts: int) -> Any:
    return (batches.part(part, parts) if isinstance(batches, StepBatches) else slice_of(batches, part, parts))[0]


def _size(batch: Any) -> int:
    """How many samples a batch has, by its first tensor; 0 if it holds none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return next(filter(None, map(_size, items)), 0)
