"""What a worker tells the server it did."""

from __future__ import annotations

import msgspec

from plesio.fabric.notes import WorkDone


class Tally(msgspec.Struct):
    """What it did since it last reported."""

    steps: int = 0
    samples: int = 0
    batches: int = 0
    folded: int = 0
    missing: int = 0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    def report(self, versions: int, finite: bool, now_s: float) -> WorkDone:
        """In the server's form; `versions` is how many more there are, from the worker that counts them."""
        return WorkDone(
            steps=self.steps,
            samples=self.samples,
            batches=self.batches,
            versions=versions,
            finite=finite,
            missing=self.missing,
            ready_s=now_s,
            staleness={0: self.folded} if self.folded else {},
            wait_s=self.wait_s,
            exchange_s=self.exchange_s,
        )
