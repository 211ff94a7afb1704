"""Tables in shared memory: in a run a row steps when the step that it is part of counts, not at `backward`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from plesio.errors import ConfigurationError
from plesio.worker.capability import Capability
from plesio.worker.state import WorkerState


class SharedTables(Capability):
    """Those of one worker's model. A worker that dies, or whose step is not folded, leaves them as they were."""

    def __init__(self, tables: Sequence[Any], state: WorkerState) -> None:
        self._tables = tables
        self._state, self._discarded = state, state.discarded
        if any(table.place.maker == os.getpid() for table in self._tables):
            raise ConfigurationError(
                "this worker made a SharedEmbedding of its own, which nobody else would have: make it outside of the training "
                "function, in the process that calls ps.run"
            )
        for table in self._tables:
            table.waiting = []

    def stepped(self, *_: object) -> None:
        counts = self._state.discarded == self._discarded
        for table in self._tables:
            for step in table.waiting if counts else ():
                step()
            table.waiting.clear()
        self._discarded = self._state.discarded
