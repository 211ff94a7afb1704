"""Tables in shared memory: in a run a row steps when the step that it is part of counts, not at `backward`."""

from __future__ import annotations

import os

from torch import nn

from plesio.errors import ConfigurationError
from plesio.tensors.model import tables_in
from plesio.worker.state import WorkerState


class SharedTables:
    """Those of one worker's model. A worker that dies, or whose step is not folded, leaves them as they were."""

    def __init__(self, model: nn.Module, state: WorkerState, inline: bool) -> None:
        self._tables = [] if inline else list(tables_in(model).values())  # in one process they would share what waits
        self.any = bool(self._tables)
        self._state, self._discarded = state, state.discarded
        if any(table.place.maker == os.getpid() for table in self._tables):
            raise ConfigurationError(
                "this worker made a SharedEmbedding of its own, which nobody else would have: make it outside of the training "
                "function, in the process that calls ps.run"
            )
        for table in self._tables:
            table.waiting = []

    def settle(self, *_: object) -> None:
        counts = self._state.discarded == self._discarded
        for table in self._tables:
            for step in table.waiting if counts else ():
                step()
            table.waiting.clear()
        self._discarded = self._state.discarded
