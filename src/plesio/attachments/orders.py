"""What a lone worker drew the order of its pass over the data from, for a process that goes on in the middle of that pass.

Several workers draw the order together, from the run's seed. A lone one draws it as its script does
(`plesio.worker.randomness.draws`), and its sources would end with it. They are too large for an answer: they go with the data
(`plesio.protocol.worker.LeaseReply`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from plesio.attachments.attachment import Attachment, Half, Pushing
from plesio.core.events import Count

PACKED_MAX = 1 << 18
Drawn = tuple[Count, Annotated[bytes, msgspec.Meta(max_length=PACKED_MAX)]]
"""The pass, counted from 0, and the sources as it began: a `RandomState`, packed."""


class Orders(Attachment):
    """Of the pass that each worker is in.

    >>> orders = Orders(workers=1)
    >>> orders.told(0, (2, b"sources"))
    >>> orders.of(0)  # the process that said so knows it
    >>> orders.again(0)
    >>> orders.of(0)
    (2, b'sources')
    """

    name = "orders"
    said = Drawn

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.restore(None)

    def told(self, worker: int, value: Drawn) -> None:
        """Also where the contribution comes to nothing: its batches are the next process's then, in the same order."""
        self._made[worker] = value
        self._new.discard(worker)

    def again(self, worker: int) -> None:
        self._new.add(worker)

    def of(self, worker: int) -> Drawn | None:
        """What goes with the data of a process that has not said what it began itself."""
        return self._made.get(worker) if worker in self._new else None

    def kept(self) -> list[tuple[int, Drawn]] | None:
        return [*self._made.items()] or None

    def restore(self, kept: Any) -> None:
        self._made = dict(msgspec.convert(kept or [], list[tuple[int, Drawn]]))
        self._new = set(self._made)


class Ordering(Half):
    """A worker's: the pass that it `began`."""

    heard = None

    def __init__(self) -> None:
        self.began: Drawn | None = None
        self._said: Drawn | None = None

    def take(self, pushing: Pushing) -> Drawn | None:
        if self.began is self._said:
            return None
        self._said = self.began
        return self.began

    def lost(self) -> None:
        self._said = None
