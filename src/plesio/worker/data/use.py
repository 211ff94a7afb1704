"""What the contribution under way has taken so far: data, and checks whether its step was called off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

B = TypeVar("B")
END: Any = object()


class DataUse:
    """Counts since the last contribution; call it to take (batches, samples) and begin again.

    `checks` counts the cancellation checks inside the step; `cancelled_at` is the number of the first that said yes. `losses`:
    how often the data was lost with the worker's seat. `waited_s`: for data and answers, since it began. `said`: the
    samples, or what else is to weigh, as the loop counts them; `late`: whether it does so after each step (None: not known).
    `read_ahead`: batches and samples that the loop has not got yet.
    """

    __slots__ = ("batches", "cancelled_at", "checks", "late", "losses", "read_ahead", "said", "samples", "waited_s")

    def __init__(self) -> None:
        self.batches = self.samples = self.said = self.checks = self.cancelled_at = 0
        self.losses, self.waited_s = 0, 0.0
        self.read_ahead = 0, 0
        self.late: bool | None = None

    @property
    def counted(self) -> int:
        """The samples that are told."""
        return self.said or self.samples

    @property
    def left_over(self) -> int:
        """The samples of the last step, counted after it was exchanged."""
        return self.said if self.late else 0

    def lose(self) -> None:
        """The data is leased to others now."""
        self()
        self.losses, self.read_ahead = self.losses + 1, (0, 0)

    def __call__(self) -> tuple[int, int]:
        taken = self.batches, self.said or self.samples
        self.batches = self.samples = self.said = self.checks = self.cancelled_at = 0
        return taken


def one_ahead(batches: Iterable[B], used: DataUse, see: Callable[[B], object]) -> Iterator[B]:
    """The same batches. Each is read and shown to `see` while the loop is at the one before. `used` counts it when the loop gets
    it."""
    coming = iter(batches)
    batch = _next(coming, used)
    while batch is not END:
        (count, samples), used.read_ahead = used.read_ahead, (0, 0)
        used.batches, used.samples = used.batches + count, used.samples + samples
        losses = used.losses
        following = _next(coming, used)
        if used.losses == losses:
            if following is not END:
                see(following)
            yield batch
            if used.losses != losses:  # what was read ahead, too, is leased to others now
                following = _next(coming, used)
        batch = following


def _next(coming: Iterator[Any], used: DataUse) -> Any:
    """The next batch, or END; what it counts is `read_ahead`."""
    before, losses = (used.batches, used.samples), used.losses
    batch = next(coming, END)
    if used.losses != losses:
        before = 0, 0
    used.read_ahead = used.batches - before[0], used.samples - before[1]
    used.batches, used.samples = before
    return batch
