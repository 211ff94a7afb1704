"""How workers come to take part: all at the beginning (`plesio.server.opening`), and late ones while the others train."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plesio.errors import PlesioError
from plesio.host.recovery_log import RecoveryLog
from plesio.launch.local.table_links import TableLinks
from plesio.memory.machine import Machine
from plesio.protocol.worker import Hello, Ready
from plesio.server.lines import Line
from plesio.server.opening import Opening
from plesio.server.program import Program
from plesio.tables.file import from_memory


class Arrivals:
    """The workers at `lines`; `begun` is called when training begins, before any of them takes part. `tables`: lines to
    those that hold rows."""

    def __init__(
        self,
        lines: list[Line | None],
        opening: Opening,
        program: Program,
        begun: Callable[[Machine, float], None],
        tables: TableLinks,
        now_s: Callable[[], float],
        log: RecoveryLog | None = None,
    ) -> None:
        self._lines = lines
        self._opening = opening
        self._program = program
        self._begun = begun
        self._tables = tables
        self._now_s = now_s
        self._log = log
        self._late: list[Line] = []  # ready, while the others train

    def prepares(self, line: Line, message: Hello | Ready, descriptors: Sequence[int] = ()) -> None:
        """A worker is nearer to taking part; raises `PlesioError` if its model is not the others'. `descriptors`: of a file with
        rows that it brings."""
        blocks = self._opening.blocks
        if isinstance(message, Ready):
            line.ready = True
            if blocks is not None and descriptors:
                blocks.brought = from_memory(descriptors[0])
        else:
            line.hello, line.late = message, blocks is not None
            if blocks is not None:
                blocks.check(message)
        if not self._program.begun:
            self.proceed()
        elif line.ready:
            self._late.append(line)
        elif blocks is not None:
            line.say(*blocks.welcome(line.worker, first=False))

    def proceed(self) -> None:
        """When every live worker is ready, training begins."""
        self._opening.proceed(self._program.stopping)
        blocks = self._opening.blocks
        if blocks is None or not self._opening.complete or self._tables.lacking():
            return
        now_s, machine = self._now_s(), Machine(blocks, rows=self._tables.rows(blocks), log=self._log)
        try:
            self._program.begin(machine, now_s)
        except PlesioError as error:  # the workers wait for their doorbells by now: the engine ends them
            self._program.trouble(None, str(error), str(error), type(error).__name__)
            return
        self._begun(machine, now_s)
        lines = [line for line in self._lines if line is not None]
        for line in sorted(lines, key=lambda line: not line.gone):  # the data of the gone is for the others
            if line.gone:
                self._program.left(line.worker, line.incarnation, not line.finished, now_s)
            else:
                self._join(line, now_s)

    def seat_late(self) -> None:
        """Let those take part that came late, once what the one before has left in their slot is folded."""
        for line in self._late[:]:
            if line.gone or not self._program.sequencer.holds_slot_of(line.worker):
                self._late.remove(line)
                if not line.gone:
                    self._join(line, self._now_s())

    def _join(self, line: Line, now_s: float) -> None:
        """A worker takes part. The run has one more, if nobody was to have that seat."""
        if line.worker >= self._program.sequencer.workers and not line.leaving:
            self._program.scale(line.worker + 1, now_s)
        self._program.joined(line.worker, line.incarnation, now_s, line.hello.at if line.hello is not None else None)
