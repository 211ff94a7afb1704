"""What the contribution under way has taken so far: data, and checks whether its step was called off."""

from __future__ import annotations


class DataUse:
    """Counts since the last contribution; call it to take (batches, samples) and begin again.

    `checks` counts the cancellation checks inside the step; `cancelled_at` is the number of the first that said yes. `losses`:
    how often the data was lost with the worker's seat. `waited_s`: for data, since the last answer.
    """

    __slots__ = ("batches", "cancelled_at", "checks", "losses", "samples", "waited_s")

    def __init__(self) -> None:
        self.batches = self.samples = self.checks = self.cancelled_at = 0
        self.losses = 0
        self.waited_s = 0.0

    def lose(self) -> None:
        """The data is leased to others now."""
        self()
        self.losses += 1

    def __call__(self) -> tuple[int, int]:
        taken = self.batches, self.samples
        self.batches = self.samples = self.checks = self.cancelled_at = 0
        return taken
