"""Batches by the step, where each worker has a batch of its own in every step, as under DDP: one for each of them.

The last step of an epoch may have fewer: then its samples are shared out evenly, so that no worker has none while the others
wait for it in an all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from math import ceil
from typing import Any

from plesio.worker.data.order import BatchOrder, size_of, slice_of


class StepBatches(list[Any]):
    """The batches of one step.

    >>> full, last = StepBatches([[1, 2], [3, 4]]), StepBatches([[5, 6]])
    >>> full.part(1, 2), last.part(0, 2), last.part(1, 2)
    (([3, 4], 2), ([5], 1), ([6], 1))
    """

    def part(self, part: int, parts: int) -> tuple[Any, int]:
        """The batch of the `part`-th of so many workers, and for how many samples it counts: one that would be empty is a
        sample of another's, and counts for none."""
        if len(self) == parts:
            return self[part], size_of(self[part])
        if not isinstance(self[0], Sized):  # single samples
            return (self[part], 1) if part < len(self) else (self[-1], 0)
        return slice_of([one for batch in self for one in batch], part, parts)


class GroupedOrder:
    """An order of batches by the step, `many` in each; `plain`: batch by batch."""

    def __init__(self, plain: BatchOrder, many: int) -> None:
        self.plain = plain
        self._many = many
        self.total = ceil(plain.total / many)
        self.begin, self.skip, self.end, self.digest = plain.begin, plain.skip, plain.end, plain.digest

    def batch(self, epoch: int, number: int) -> StepBatches:
        """The batches of step `number` of the epoch."""
        return self.batches(epoch)[number]

    def batches(self, epoch: int) -> _Groups:
        return _Groups(self.plain.batches(epoch), self.plain.total, self._many)


class _Groups(Sequence[StepBatches]):
    def __init__(self, batches: Any, total: int, many: int) -> None:
        self._batches, self._total, self._many = batches, total, many

    def __len__(self) -> int:
        return ceil(self._total / self._many)

    def __getitem__(self, number: Any) -> StepBatches:
        first = number * self._many
        return StepBatches(self._batches[one] for one in range(first, min(first + self._many, self._total)))
