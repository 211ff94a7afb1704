"""What may be given as data, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence, Sized
from typing import Any

from torch.utils import data
from torch.utils.data import DataLoader, IterableDataset

from plesio.errors import ConfigurationError
from plesio.worker.warn import warn


class SourceWrapper:
    """What stands in for something of the user's, `_source`: it has the attributes of that, but for its own."""

    _source: Any
    looped = False  # whether anybody looped over it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._source, name)


def as_loader(loader: Any) -> DataLoader[Any]:
    """A DataLoader as it is; any other sized dataset as one that yields single items."""
    if isinstance(loader, DataLoader):
        _check_shareable(loader)
        return loader
    items = loader.values() if isinstance(loader, dict) else loader if isinstance(loader, (list, tuple)) else ()
    if any(isinstance(one, DataLoader) for one in items) or not (
        hasattr(loader, "__getitem__") and isinstance(loader, Sized)
    ):
        raise ConfigurationError(
            f"prepare was given {type(loader).__name__} for data; allowed: one torch DataLoader, or anything with a length and "
            "items; of several DataLoaders in one give it the one to train from, and iterate the others as they are"
        )
    return DataLoader(loader, batch_size=None)  # type: ignore[arg-type]


def is_stream(loader: Any) -> bool:
    """Whether this is a DataLoader over data without numbered samples."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """How it makes batches: arguments for another one."""
    kept = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"]
    if loader.num_workers:
        kept += ["prefetch_factor", "persistent_workers", "multiprocessing_context"]
    return {name: getattr(loader, name) for name in kept}


def warn_of_processes(loaders: Sequence[Any], workers: int) -> None:
    """Of all workers' processes together, where torch warns of one worker's."""
    each = max((getattr(one, "num_workers", 0) for one in loaders), default=0)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers > 1 and each * workers > cores:
        warn(
            f"{workers} workers start num_workers={each} loader processes each, {each * workers} in all, and this host has "
            f"{cores} cores: more than cores make a loop slower; give the DataLoader a smaller num_workers"
        )


def _check_shareable(loader: DataLoader[Any]) -> None:
    """Whether its samples can be shared out, all of them."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ConfigurationError(
            f"{type(loader).__name__} has an __iter__ of its own, which plesio would not call; do what it does in collate_fn, "
            "in the dataset or in the training loop"
        )
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, data.DistributedSampler):
            raise ConfigurationError(
                f"the DataLoader's {type(sampler).__name__} leaves each worker a part of the data; prepare shares out "
                "the whole: leave the sampler out and say shuffle=True (for equal parts, run with data='shards')"
            )
