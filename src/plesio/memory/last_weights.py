"""Where workers fold among themselves each leaves its weights when it ends: which buffer it is to write them into.

Nobody knows who will be last, and whoever writes may be killed at it. There are two buffers: one that holds weights that
were handed over whole, or that somebody writes, is given only to workers whose weights are the same, of the same version.
"""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The weights of `version`, in `buffer`."""

    version: int
    buffer: int


class LastWeights:
    """What was handed over, and what is on its way."""

    def __init__(self, buffers: tuple[int, ...]) -> None:
        self._buffers = buffers
        self._written: dict[int, Place] = {}  # by which worker
        self.whole: Place | None = None

    def place(self, worker: int, version: int) -> int | None:
        """Where `worker` is to write what it has, of `version`; None where there is no room for it."""
        taken = [*self._written.values(), *([self.whole] if self.whole else [])]
        for buffer in self._buffers:
            if all(one.version == version for one in taken if one.buffer == buffer):
                self._written[worker] = Place(version, buffer)
                return buffer
        return None

    def handed_over(self, worker: int) -> None:
        place = self._written.pop(worker, None)
        if place is not None and (self.whole is None or place.version > self.whole.version):
            self.whole = place

    def died(self, worker: int) -> None:
        self._written.pop(worker, None)
