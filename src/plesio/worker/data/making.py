"""How batches are made of indices: as torch's DataLoader makes them, which is told the indices here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from plesio.worker.data.source import as_loader


class BatchMaker:
    """Makes a loader's batches of indices: one after the other, or ahead where the loader has processes of its own.

    Args:
        source: the user's loader.
        generator: what the processes' seed is drawn from; None: torch's own source.
    """

    def __init__(self, source: DataLoader[Any], generator: Any = None) -> None:
        self._source = source
        self.relays = bool(source.num_workers or source.pin_memory)
        """Whether a DataLoader makes them, which draws a seed for its processes as each pass begins."""
        self._relay = _Relay(source, generator) if self.relays else None

    def over(self, indices: Iterator[Any]) -> Iterator[Any]:
        if self._relay is not None:
            return self._relay.over(indices)
        return (_fetch(self._source, one) for one in indices)


class _Relay:
    """A DataLoader like the user's that takes its indices from leases."""

    def __init__(self, source: DataLoader[Any], generator: Any) -> None:
        self._source: Iterator[Any] = iter(())
        kept = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"]
        if source.num_workers:
            kept += ["prefetch_factor", "persistent_workers", "multiprocessing_context"]
        settings: dict[str, Any] = {name: getattr(source, name) for name in kept}
        drawn_by = (
            {"batch_sampler": self} if source.batch_sampler is not None else {"batch_size": None, "sampler": self}
        )
        self._loader: DataLoader[Any] = DataLoader(source.dataset, generator=generator, **drawn_by, **settings)

    def __iter__(self) -> Iterator[Any]:
        """As the DataLoader's sampler."""
        return self._source

    def over(self, indices: Iterator[Any]) -> Iterator[Any]:
        self._source = indices
        return iter(self._loader)


def whole_pass(given: Any) -> Iterator[Any]:
    """A pass over all that `prepare` was given, in its own order: a DataLoader's own, or a data set's items as tensors."""
    if isinstance(given, DataLoader):
        return iter(given)
    source = as_loader(given)
    return (_fetch(source, one) for one in range(len(given)))


def _fetch(loader: DataLoader[Any], indices: Any) -> Any:
    """The batch that a DataLoader without processes makes of `indices`."""
    dataset: Any = loader.dataset
    if loader.batch_sampler is None:
        return loader.collate_fn(dataset[indices])
    if hasattr(dataset, "__getitems__"):
        return loader.collate_fn(dataset.__getitems__(indices))
    return loader.collate_fn([dataset[index] for index in indices])
