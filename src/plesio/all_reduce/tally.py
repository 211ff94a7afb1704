"""What a worker tells the server it did."""

from __future__ import annotations

import msgspec

from plesio.fabric.doorbell import Header, Note, Report


class Tally(msgspec.Struct):
    """What it did since it last reported."""

    steps: int = 0
    samples: int = 0
    batches: int = 0
    folded: int = 0
    missing: int = 0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    def report(self, versions: int, finite: bool, now_s: float) -> Header:
        """In the server's form; `versions` is how many more there are, from the worker that counts them."""
        staleness = {0: self.folded} if self.folded else {}
        return Header(
            note=Note.REPORT,
            finite=finite,
            batches=self.batches,
            steps=self.steps,
            number=versions,
            samples=self.samples,
            missing=self.missing,
            ready_s=now_s,
            extra=msgspec.msgpack.encode(Report(self.wait_s, staleness, self.exchange_s)),
        )
