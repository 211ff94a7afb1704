"""How batches are made of indices: as torch's DataLoader makes them, which is told the indices here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from plesio.worker.data.source import settings_of


class BatchMaker:
    """A DataLoader like the user's that takes its indices from leases; where it has processes, it takes some ahead. With
    `draws`, a pass draws the seed of its processes as the user's would. Else it comes from torch's own source, and nothing is
    drawn where there are none."""

    def __init__(self, source: DataLoader[Any], draws: bool = False) -> None:
        self._indices: Iterator[Any] = iter(())
        generator = source.generator if draws else None if source.num_workers else torch.Generator()
        drawn_by = (
            {"batch_sampler": self} if source.batch_sampler is not None else {"batch_size": None, "sampler": self}
        )
        self._loader: DataLoader[Any] = DataLoader(
            source.dataset, generator=generator, **drawn_by, **settings_of(source)
        )

    def __iter__(self) -> Iterator[Any]:
        """As the DataLoader's sampler."""
        return self._indices

    def over(self, indices: Iterator[Any]) -> Iterator[Any]:
        self._indices = indices
        return iter(self._loader)


def whole_pass(given: Any, source: DataLoader[Any]) -> Iterator[Any]:
    """A pass over all that `prepare` was given, in its own order: a DataLoader's own, or a data set's items as tensors."""
    return iter(source) if given is source else BatchMaker(source).over(iter(range(len(given))))
