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
        self._before: tuple[int, bytes] | None = None  # the pass that another process was in, and what that began from
        self._now: bytes | None = None  # from what all else goes on then, until that order is drawn

    @property
    def is_new(self) -> bool:
        """Whether this process began no pass yet, and goes on with nothing that was saved."""
        return self._epoch < 0 and self._now is None

    def knows(self, epoch: int) -> bool:
        """Whether it has what another process began that pass from."""
        return self._before is not None and self._before[0] == epoch

    def goes_on(self, epoch: int, start: bytes) -> None:
        """Another process began that pass from there, and nobody knows how far its sources were when it ended."""
        if self.is_new and self._before is None:
            self._before = epoch, start

    @property
    def start(self) -> RandomState:
        """The sources as the pass under way began."""
        assert self._start is not None, "it began"
        return self._start

    def begin(self, epoch: int) -> None:
        """A pass over the data begins; the first of a resumed run begins as it did before, or goes on from what was saved."""
        if self._before is not None and self.knows(epoch):  # also after a look at it
            RandomState.unpacked(self._before[1], self.generators).restore()
        else:
            if self._now is not None:
                RandomState.unpacked(self._now, self.generators).restore()
            self._before = self._now = None
        self._epoch, self._start = epoch, RandomState(self.generators)

    def rewind(self) -> None:
        self.start.restore()

    def caught_up(self) -> None:
        """The order of an interrupted pass is drawn up to where it was; all but its generators go on from what was saved."""
        if self._now is not None:
            RandomState.unpacked(self._now).restore()
            self._now = None

    def kept(self) -> dict[str, Any]:
        now = RandomState(self.generators)
        return {"epoch": self._epoch, "start": (self._start or now).packed(), "now": now.packed()}

    def take_up(self, saved: dict[str, Any]) -> None:
        """Go on with what `kept` gave: at once, and again when the data is read, whatever is drawn until then."""
        RandomState.unpacked(saved["now"]).restore()
        self._before, self._now = (saved["epoch"], saved["start"]), saved["now"]
