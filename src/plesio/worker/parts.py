"""Data that nobody leases: a stream, and loaders beside the first. Each worker reads every n-th of it.

A dead worker's part is not read by others, and this data is in no count of epochs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from plesio.protocol.worker import LeaseReply
from plesio.worker.data_use import DataUse


def own_part(rank: int, workers: int) -> Callable[[int, int, int, int, int], LeaseReply]:
    """In place of the server's leases: every n-th batch of an epoch. What a loop that was left early did not use is left out."""
    given: dict[int, int] = {}  # of an epoch

    def lease(epoch: int, total: int, most: int, unused: int, digest: int) -> LeaseReply:
        numbers = range(rank, total, workers)
        start = given.get(epoch, 0)
        given[epoch] = start + most
        return LeaseReply(tuple((epoch, number) for number in numbers[start : start + most]))

    return lease


class StreamLoader:
    """Yields this worker's part of a DataLoader over an IterableDataset; its other attributes are the user's DataLoader's.

    The part is what the data set itself gives for `shard(workers, rank)`, if it has that; else every n-th element.

    Args:
        source: the user's.
        rank, workers: which part.
        used: told of the samples.
        skipped: samples of this part that were used before the run was resumed; they are read, and left out.
    """

    def __init__(self, source: DataLoader[Any], rank: int, workers: int, used: DataUse, skipped: int) -> None:
        self._source = source
        self._used = used
        self._skipped = skipped
        self._workers = workers
        self.looped = False
        """Whether anybody looped over it."""
        kept = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "batch_size", "drop_last"]
        if source.num_workers:
            kept += ["prefetch_factor", "persistent_workers", "multiprocessing_context"]
        settings: dict[str, Any] = {name: getattr(source, name) for name in kept}
        self._loader: DataLoader[Any] = DataLoader(_part(source.dataset, rank, workers), **settings)

    def __len__(self) -> int:
        """An equal share; TypeError, as of the data set, if that has no length."""
        return math.ceil(len(self._source) / self._workers)

    def __iter__(self) -> Iterator[Any]:
        self.looped = True
        for batch in self._loader:
            size = 1 if self._source.batch_size is None else _size(batch) or self._source.batch_size
            if self._skipped:
                self._skipped = max(0, self._skipped - size)
                continue
            if torch.is_grad_enabled():
                self._used.samples += size
            yield batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._source, name)


class _EveryNth(IterableDataset[Any]):
    def __init__(self, dataset: Any, rank: int, workers: int) -> None:
        self.dataset = dataset
        self._rank, self._workers = rank, workers

    def __iter__(self) -> Iterator[Any]:
        for place, element in enumerate(
            self.dataset
        ):  # in each of the DataLoader's processes: the n-th of what it reads
            if place % self._workers == self._rank:
                yield element


def _part(dataset: Any, rank: int, workers: int) -> Any:
    shards = getattr(dataset, "num_shards", None)  # of Hugging Face's data sets, which refuse more parts than shards
    if callable(getattr(dataset, "shard", None)) and (shards is None or shards >= workers):
        return dataset.shard(workers, rank)
    return _EveryNth(dataset, rank, workers) if workers > 1 else dataset


def _size(batch: Any) -> int:
    """How many samples a batch has, by its first tensor; 0 if it holds none."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 0
    items = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return next(filter(None, map(_size, items)), 0)
