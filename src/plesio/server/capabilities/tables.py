"""Workers are served rows of tables (`plesio.core.row_requests`)."""

from __future__ import annotations

from plesio.core.events import FoldRows, RowsWanted, Serve
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.protocol.worker import Contribution
from plesio.server.capability import Capability, Serving


class Tables(Capability):
    """Of a run whose model may have tables: that is known when it is there."""

    def __init__(self, program: Serving) -> None:
        super().__init__(program)
        self.actions = {Serve: self._serve, FoldRows: lambda fold: program.memory.do(fold)}
        self.supplies = {RowsRequest: self._wanted}
        self.nbytes = {Contribution: self._nbytes_pushed, RowsServed: self._nbytes_served}

    def _wanted(self, worker: int, incarnation: int, asked: RowsRequest, now_s: float) -> bool:
        """Its model needs rows; whether it is a member."""
        program = self.program
        assert program.memory.rows is not None, "its model has tables"
        program.memory.rows.asked(worker, asked)
        program.receive(RowsWanted(worker, incarnation, asked.number, asked.ahead), now_s)
        return program.sequencer.members.seat(worker, incarnation) is not None

    def _serve(self, serve: Serve) -> None:
        memory = self.program.memory
        memory.do(serve)
        if self.program.listening[serve.worker] and memory.rows is not None and memory.rows.answers:
            self.program.replies.supplied(serve.worker, RowsServed(serve.ahead))

    def unsettled(self) -> bool:
        """Rows have stepped by a contribution that waits for its fold. A resumed run computes that again, and would step them
        twice."""
        program = self.program
        return program.memory.rows is not None and program.strategy.rows.at_once and bool(program.sequencer.unfolded)

    def _nbytes_pushed(self, worker: int, made: Contribution) -> int:
        rows = self.program.memory.rows
        return rows.nbytes_pushed(worker, made.number) if rows is not None else 0

    def _nbytes_served(self, worker: int, asked: RowsRequest) -> int:
        assert self.program.memory.rows is not None, "its model has tables"
        return self.program.memory.rows.nbytes_of(asked)

    def left_over(self) -> tuple[int, ...]:
        """Files with the rows, if the model has any and there is room for them."""
        rows = self.program.memory.rows
        try:
            return rows.hand_over() if rows is not None else ()
        except OSError as error:
            why = f"the rows of the tables are lost: they cannot be handed over ({error})"
            self.program.trouble(None, why)
            return ()
