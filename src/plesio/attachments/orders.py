"""What a lone worker drew the order of its pass over the data from, for a process that goes on in the middle of that pass.

Several workers draw the order together, from the run's seed. A lone one draws it as its script does
(`plesio.worker.randomness.draws`), and its sources would end with it. They are too large for an answer: they go with the data
(`plesio.protocol.worker.LeaseReply`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from plesio.attachments.attachment import Attachment, Half, Pushing
from plesio.core.events import Count

PACKED_MAX = 1 << 18
"""In bytes: three sources and a generator are 16,000."""
Drawn = tuple[Count, Annotated[bytes, msgspec.Meta(max_length=PACKED_MAX)]]
"""The pass, counted from 0, and the sources as it began: a `RandomState`, packed."""


class Orders(Attachment):
    """Of the pass that a run's only worker is in.

    >>> orders = Orders(workers=1)
    >>> orders.told(0, (2, b"sources"))
    >>> orders.now  # the process that said so knows it
    >>> orders.again(0)
    >>> orders.now
    (2, b'sources')
    """

    name = "orders"
    said = Drawn

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._drawn: Drawn | None = None
        self._is_new = True

    def told(self, worker: int, value: Drawn) -> None:
        """Also where the contribution comes to nothing: its batches are the next process's then, in the same order."""
        self._drawn, self._is_new = value, False

    def again(self, worker: int) -> None:
        self._is_new = True

    @property
    def now(self) -> Drawn | None:
        """What goes with the data of a process that has contributed nothing yet."""
        return self._drawn if self._is_new else None

    def kept(self) -> Drawn | None:
        return self._drawn

    def restore(self, kept: Any) -> None:
        """Where there are several by now, the run draws the order."""
        self._drawn = msgspec.convert(kept, Drawn | None) if self.workers == 1 else None
        self._is_new = True


class Ordering(Half):
    """A worker's: the pass that it `began`, and what packs its sources as they were then."""

    heard = None

    def __init__(self) -> None:
        self.began: tuple[int, Callable[[], bytes]] | None = None
        self._said: object = None

    def take(self, pushing: Pushing) -> Drawn | None:
        if self.began is None or self.began is self._said:
            return None
        self._said = self.began
        epoch, packed = self.began
        return epoch, packed()

    def lost(self) -> None:
        self._said = None
