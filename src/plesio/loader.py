"""The user's data, shared out among the workers while they run.

Every worker knows the same list of batches for an epoch (drawn from the run's seed and the epoch's number); the server
leases their numbers. A fast worker takes more, a dead worker's batches go to others, and a batch is done when the
contribution it went into is folded. The batches themselves are made here, by torch's own DataLoader.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from plesio.errors import ConfigurationError
from plesio.exchange import Used

LEASE_MAX = 8
"""Batches asked for at a time, at most; fewer where an epoch has few, so that its end is shared out evenly."""

Lease = Callable[[int, int, int, int], tuple[tuple[int, int], ...]]
"""(epoch, total batches, most, unused) -> (epoch, batch) pairs; none when the epoch is given out or the run is over."""


class LeasedLoader:
    """Yields this worker's part of each epoch; iterate it once an epoch, as a DataLoader.

    Its length is an equal share of the epoch, rounded up: how many batches really come depends on everybody's speed.
    """

    def __init__(
        self, loader: Any, lease: Lease, seed: int, workers: int, used: Used, reseed: Callable[[], None]
    ) -> None:
        self._source = _as_loader(loader)
        self._lease = lease
        self._seed = seed
        self._epoch = 0
        self._kept: dict[int, Sequence[Any]] = {}
        self._total = len(self._batches(0))
        if self._total == 0:
            raise ConfigurationError(
                "the loader is empty: no batch in an epoch; give it data, or a batch_size no larger than the data "
                "where drop_last=True"
            )
        self._most = max(1, min(LEASE_MAX, self._total // (8 * workers)))
        self._share = -(-self._total // workers)
        self._sizes: deque[int] = deque()  # of the batches given to the DataLoader and not yielded yet
        self._unused = 0
        self._used = used
        self._reseed = reseed
        self._loader = _relay(self._source, self)

    def __len__(self) -> int:
        return self._share

    def __iter__(self) -> Iterator[Any]:
        """One epoch's worth of this worker's batches."""
        self._unused += len(self._sizes)  # the last epoch was left early
        self._sizes.clear()
        batches = iter(self._loader)
        while True:
            if not self._used.batches:
                self._reseed()  # whatever was drawn since the last exchange: a resumed run draws otherwise there
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._used.batches += 1
            self._used.samples += self._sizes.popleft()
            yield batch

    def leased(self) -> Iterator[Any]:
        """The indices of the batches leased for the next epoch, as they are granted."""
        epoch = self._epoch
        self._epoch += 1
        while True:
            unused, self._unused = self._unused, 0
            batches = self._lease(epoch, self._total, self._most, unused)
            if not batches:
                return
            for of_epoch, number in batches:
                indices = self._batches(of_epoch)[number]
                self._sizes.append(len(indices) if isinstance(indices, Sized) else 1)
                yield indices

    def _batches(self, epoch: int) -> Sequence[Any]:
        """All batches of an epoch: the same list on every worker."""
        if epoch not in self._kept:
            while len(self._kept) >= 2:
                del self._kept[min(self._kept)]
            self._kept[epoch] = _draw(self._source, self._seed + 1_000_003 * (epoch + 1))
        return self._kept[epoch]


class _Leased:
    """What torch's DataLoader takes for a sampler."""

    def __init__(self, owner: LeasedLoader) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return self._owner.leased()


def _as_loader(loader: Any) -> DataLoader[Any]:
    """A DataLoader as it is; any other sized dataset as one that gives its items one by one."""
    if isinstance(loader, DataLoader):
        if isinstance(loader.dataset, IterableDataset):
            raise ConfigurationError(
                "a DataLoader over an IterableDataset has no numbered samples to share out; split the stream by "
                "worker.rank yourself and do not give it to prepare"
            )
        return loader
    if hasattr(loader, "__getitem__") and isinstance(loader, Sized):
        return DataLoader(loader, batch_size=None)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"prepare was given {type(loader).__name__} for data; allowed: a torch DataLoader, or anything with a length "
        "and items"
    )


def _draw(loader: DataLoader[Any], seed: int) -> Sequence[Any]:
    """The loader's own batches (or, without batching, samples), drawn under `seed`; other randomness is left alone."""
    sampler: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    outside = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        for one in (sampler, getattr(sampler, "sampler", None)):
            generator = getattr(one, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
        batches = list(sampler)
    random.setstate(outside)
    return batches


def _relay(source: DataLoader[Any], owner: LeasedLoader) -> DataLoader[Any]:
    """A DataLoader like `source` that takes its indices from leases."""
    settings: dict[str, Any] = {
        "num_workers": source.num_workers,
        "collate_fn": source.collate_fn,
        "pin_memory": source.pin_memory,
        "timeout": source.timeout,
        "worker_init_fn": source.worker_init_fn,
    }
    if source.num_workers:
        settings["prefetch_factor"] = source.prefetch_factor
        settings["persistent_workers"] = source.persistent_workers
    if source.batch_sampler is not None:
        return DataLoader(source.dataset, batch_sampler=_Leased(owner), **settings)
    return DataLoader(source.dataset, batch_size=None, sampler=_Leased(owner), **settings)
