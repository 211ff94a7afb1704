"""A worker's part of a trainer's data: trainers count batches before they read any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from plesio.worker.worker import Worker


class Part:
    """This worker's batches of `loader`, which is prepared later: as many as everybody's, or one more.

    Its other attributes are the loader's.
    """

    def __init__(self, worker: Worker, loader: DataLoader[Any]) -> None:
        self.whole = loader
        self.prepared: Any = None
        self._number = len(range(worker.rank, len(loader), worker.workers))

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Any]:
        yield from self.prepared  # not before the first batch is asked for: trainers look whether there is an iterator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.whole, name)
