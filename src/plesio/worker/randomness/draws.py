"""The random sources of a lone worker: they are the script's, and nobody seeds them anew.

So one worker draws what the script on its own would draw. A checkpoint keeps the sources as they were when the pass over the
data began, from which its order is drawn again, and as they were at the worker's last contribution.
"""

from __future__ import annotations

from typing import Any

import torch

from plesio.worker.randomness.seeding import RandomState


class OwnDraws:
    """Torch's, NumPy's and Python's global sources, and the generators of the loader that is leased."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []
        self._epoch = -1
        self._start: RandomState | None = None  # of the pass under way
        self._saved: dict[str, Any] | None = None  # until the first pass of a resumed run

    def knows(self, epoch: int) -> bool:
        """Whether it has what that pass was begun with, if another process began it."""
        return self._epoch >= 0 or (self._saved is not None and self._saved["epoch"] == epoch)

    def goes_on(self, epoch: int, start: bytes) -> None:
        """Another process began that pass from there. What is drawn beside its order is this one's own."""
        if self._epoch < 0 and self._saved is None:
            self._saved = {"epoch": epoch, "start": start, "now": RandomState(self.generators).packed()}

    @property
    def start(self) -> bytes:
        """The sources as the pass under way began."""
        assert self._start is not None, "it began"
        return self._start.packed()

    def begin(self, epoch: int) -> None:
        """A pass over the data begins; the first of a resumed run begins as it did before, or goes on from what was saved."""
        if self._saved is not None:
            again = self._saved["epoch"] == epoch
            RandomState.unpacked(self._saved["start" if again else "now"], self.generators).restore()
            if not again:
                self._saved = None
        self._epoch, self._start = epoch, RandomState(self.generators)

    def rewind(self) -> None:
        assert self._start is not None, "it began"
        self._start.restore()

    def caught_up(self) -> None:
        """The order of an interrupted pass is drawn up to where it was; all but its generators go on from what was saved."""
        if self._saved is not None:
            RandomState.unpacked(self._saved["now"]).restore()
            self._saved = None

    def kept(self) -> dict[str, Any]:
        now = RandomState(self.generators)
        return {"epoch": self._epoch, "start": (self._start or now).packed(), "now": now.packed()}

    def take_up(self, saved: dict[str, Any]) -> None:
        """Go on with what `kept` gave: at once, and again when the data is read, whatever is drawn until then."""
        RandomState.unpacked(saved["now"]).restore()
        self._saved = saved
