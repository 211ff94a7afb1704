"""A worker's part of a trainer's data: trainers count batches before they read any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from math import ceil
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from plesio.errors import ConfigurationError
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.data.source import SourceWrapper
from plesio.worker.worker import Worker


def check_lock_step(worker: Worker, what: str) -> None:
    """Refuse `what` asks all workers where they do not go in lock step."""
    if worker.workers > 1 and not dist.is_initialized():
        raise ConfigurationError(
            f"{what} asks all workers, and they answer only in lock step, as processes of one host: take sync_sgd or allreduce, "
            "or leave it out; each worker may evaluate on all of the data, by a loader that was not prepared"
        )


class WorkerBatches(SourceWrapper):
    """This worker's batches of `loader`: as many as everybody's, or one more. Its other attributes are the loader's.

    Args:
        worker: whose.
        loader: all of the data.
        begin: called before the first batch, unless something has set `prepared` by then: to do that.
    """

    def __init__(self, worker: Worker, loader: DataLoader[Any], begin: Callable[[], None]) -> None:
        self.whole = self._source = loader
        self.prepared: Any = None
        self.given = 0  # how many batches the last iteration gave
        self._worker = worker
        self._begin = begin
        self._streams = isinstance(getattr(loader, "dataset", None), IterableDataset)

    def __len__(self) -> int:
        return self._share(self._worker.rank)

    def _share(self, rank: int) -> int:
        batches, workers = len(self.whole), self._worker.workers
        return ceil(batches / workers) if self._streams else len(range(rank, batches, workers))

    def __iter__(self) -> Iterator[Any]:
        """What draws random numbers when its iterator is made does so now, but for the first time: see `_batches`."""
        return self._batches(None if self.prepared is None else iter(self.prepared))

    def _batches(self, batches: Iterator[Any] | None) -> Iterator[Any]:
        if batches is None:  # trainers look whether there is an iterator before there is an optimizer
            self._begin()
            batches = iter(self.prepared)
        self.given = 0
        for batch in batches:
            self.given += 1
            if isinstance(self.prepared, LeasedLoader) and self.given == len(self):
                self.prepared.drawn()  # trainers count batches, and on their own read one ahead
            yield batch

    def cut(self, most: float) -> Any:
        """The loader with what workers read that stop after `most` batches of an epoch, or after that part of theirs."""
        if not isinstance(self.whole, DataLoader) or self._streams:
            return self.whole
        shares = map(self._share, range(self._worker.workers))
        number = sum(min(one, most) if isinstance(most, int) else int(one * most) for one in shares)
        if number >= len(self.whole):
            return self.whole
        first = copy(self.whole)
        name = "sampler" if first.batch_sampler is None else "batch_sampler"
        vars(first)[name] = Slice(getattr(first, name), 0, number)  # a DataLoader does not let it be set
        return first


class Slice(SourceWrapper):
    """What a loader or a sampler gives, from the one at `start` to before the one at `end`, or to its own end."""

    def __init__(self, source: Any, start: int, end: int | None = None) -> None:
        self._source, self._start, self._end = source, start, end

    def __iter__(self) -> Iterator[Any]:
        return islice(self._source, self._start, self._end)

    def __len__(self) -> int:
        return (len(self._source) if self._end is None else self._end) - self._start
