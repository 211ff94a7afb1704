"""What clients keep from round to round counts exactly if the contribution does that it came with.

A worker says with a contribution which folder has it (`plesio.attachments.turns`). The fold gives the files their places
(`plesio.transport.client_states`).
"""

from __future__ import annotations

from plesio.core.events import Discard, Fold
from plesio.protocol.worker import Contribution
from plesio.server.capability import Capability, Serving


class Clients(Capability):
    def __init__(self, program: Serving) -> None:
        super().__init__(program)
        assert program.checkpointer.states is not None, "else the run has none"
        self._states = program.checkpointer.states
        self._coming: dict[tuple[int, int, int], str] = {}  # by contribution

    @staticmethod
    def is_of(program: Serving) -> bool:
        return program.checkpointer.states is not None

    def went_back(self) -> None:
        self._coming.clear()

    def came(self, worker: int, incarnation: int, made: Contribution) -> None:
        if coming := self.program.checkpointer.attachments.turns(worker):
            self._coming[worker, incarnation, made.number] = coming

    def folded(self, fold: Fold) -> None:
        """It is theirs from this version on."""
        if not self._coming:
            return
        oldest = min((seat.computing for seat in self.program.sequencer.members.seats.values()), default=fold.version)
        for one in fold.members:
            if coming := self._coming.pop((one.worker, one.incarnation, one.number), ""):
                self._states.count(coming, fold.version, oldest)

    def discarded(self, discard: Discard) -> None:
        if coming := self._coming.pop((discard.worker, discard.incarnation, discard.number), ""):
            self._states.drop(coming)
