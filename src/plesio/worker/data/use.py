"""What the contribution under way has taken so far: data, and checks whether its step was called off."""

from __future__ import annotations


class DataUse:
    """Counts since the last contribution; call it to take (batches, samples) and begin again.

    `checks` counts the cancellation checks inside the step; `cancelled_at` is the number of the first that said yes. `losses`:
    how often the data was lost with the worker's seat. `waited_s`: for data, since the last answer. `said`: the
    samples, or what else is to weigh, as the loop counts them.
    """

    __slots__ = ("batches", "cancelled_at", "checks", "losses", "said", "samples", "waited_s")

    def __init__(self) -> None:
        self.batches = self.samples = self.said = self.checks = self.cancelled_at = 0
        self.losses, self.waited_s = 0, 0.0

    @property
    def counted(self) -> int:
        """The samples that are told."""
        return self.said or self.samples

    def lose(self) -> None:
        """The data is leased to others now."""
        self()
        self.losses += 1

    def __call__(self) -> tuple[int, int]:
        taken = self.batches, self.counted
        self.batches = self.samples = self.said = self.checks = self.cancelled_at = 0
        return taken
