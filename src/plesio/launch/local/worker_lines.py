"""The workers of a server process: how they come and go, what is heard on their lines, and how they are answered.

A worker says most in its pipe (doorbell), and the rest on its channel. Its end, whatever ends it, is the end of these files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from plesio.core.events import Cancel, Evict, Grant
from plesio.errors import ConfigurationError, PlesioError
from plesio.launch.local.handlers import Handlers
from plesio.launch.local.meeting import Meeting
from plesio.launch.local.table_links import TableLinks
from plesio.launch.local.turns import Turns
from plesio.memory.machine import Machine
from plesio.protocol import worker as protocol
from plesio.protocol.coding import ProtocolError
from plesio.protocol.launcher import Opened, RoundMade
from plesio.protocol.rows import RowsRequest
from plesio.server.interfaces import Replies
from plesio.server.lines import Line
from plesio.server.opening import Opening
from plesio.server.peers import Peers
from plesio.server.program import Program
from plesio.tables.file import from_memory
from plesio.transport.channel import ChannelClosedError, readable
from plesio.transport.doorbell import Located, write_answer

MESSAGE_S = 10.0


class WorkerLines(Replies):
    """It answers the workers at `lines` for its program. No answer is asked for again: pipes lose nothing.

    Args:
        tables: lines to those that hold rows.
        begun: called when training begins, before any of them takes part.
        look_at: told of versions that somebody looks at.
    """

    program: Program  # these are made with it
    machine: Machine  # once there is a model

    def __init__(
        self,
        lines: list[Line | None],
        handlers: Handlers,
        turns: Turns,
        opening: Opening,
        tables: TableLinks,
        begun: Callable[[Machine, float], None],
        look_at: Callable[[RoundMade], None],
    ) -> None:
        self.meeting = Meeting(lines)
        self.wake_s = inf
        """When `Ticked` is to be told."""
        self._undone = 0  # versions of the head before, as far as a worker has told
        self._came = set[int]()  # who has taken part under this head
        self.emptied_s = 0.0
        """When a worker was lost last."""
        self._lines, self._handlers, self._turns = lines, handlers, turns
        self._world, self._sent = turns.world, turns.world.sent
        self._opening, self._tables = opening, tables
        self._begun, self._look_at = begun, look_at
        self._late: list[Line] = []  # ready, while the others train
        self._freed: list[tuple[int, Located]] = []  # who is answered when the decision is done
        self._unresponsive: list[Line] = []  # there was no room to answer them: cut off when all is done
        self._evicted: list[Line] = []  # members no longer: hung up when all is done
        self._peers: Peers | None = None

    def serve(self, program: Program) -> None:
        """Tell that program what workers say."""
        self.program = program
        self._hear: dict[type, Callable[[int, int, Any, float], object]] = {
            protocol.Contribution: program.pushed,
            protocol.DroppedStep: program.abandoned,
            protocol.AskAhead: lambda worker, _, asked, now_s: self._give(self.of(worker), asked.request),
            protocol.Farewell: self._farewell,
        }

    def tick(self, now_s: float) -> None:
        if self._peers is not None:
            self._peers.tick(now_s)

    # Answers

    def now_s(self) -> float:
        return self._world.now_s()

    def granted(self, grant: Grant, answer: Located) -> float:
        """Who has waited sleeps, and takes this core when it is woken: first whoever has just spoken, and is awake. The others
        are answered when the decision is done, which is soon."""
        if grant.freed_by_other:
            self._freed.append((grant.worker, answer))
            return self.now_s()
        return self._answer(grant.worker, answer)

    def called_off(self, cancel: Cancel, answer: Located) -> float:
        return self._answer(cancel.worker, answer)  # unasked

    def decided(self) -> None:
        freed, self._freed = self._freed, []
        for worker, answer in freed:
            self._answer(worker, answer)

    def _answer(self, worker: int, answer: Located) -> float:
        line = self.of(worker)
        line.answers += 1
        sent_s = self._sent(_write, line, answer.stopping() if line.leaving else answer, line.answers)
        if not sent_s:
            self._unresponsive.append(line)
        return sent_s or self.now_s()

    def wake_at(self, time_s: float) -> None:
        self.wake_s = time_s

    def supplied(self, worker: int, reply: protocol.Supply) -> None:
        self.of(worker).say(reply)

    def round_ended(self, made: RoundMade) -> None:
        self._look_at(made)

    def refused(self, worker: int, why: str) -> None:
        self._refuse(self.of(worker), ConfigurationError(why))

    def _refuse(self, line: Line, error: PlesioError) -> None:
        """A latecomer that is not like the others has to go, and another may take its seat. Of those that were there at the
        beginning nobody knows who is right: what they raise ends the run."""
        line.say(protocol.Refused(type(error).__name__, str(error), line.late))
        if line.late:
            self.lost(line, f"was refused ({error})")

    def evicted(self, evict: Evict) -> None:
        self._evicted.append(self.of(evict.worker))

    # Who is there

    def of(self, worker: int) -> Line:
        line = self._lines[worker]
        assert line is not None, "it has come"
        return line

    def listen(self, line: Line) -> None:
        self._turns.is_old = True
        self._handlers.add(line.messages.descriptor, partial(self.from_doorbell, line))
        self._handlers.add(line.channel.fileno(), partial(self.from_channel, line))

    def open(self, message: Opened, descriptors: Sequence[int]) -> None:
        """Somebody has taken a seat, perhaps that of one who died."""
        older = self._lines[message.worker]
        if older is not None:
            self.lost(older)
            self.program.returned(message.worker)
        self.program.meter.workers[message.worker].away = message.away
        line = Line.open(message.worker, message.incarnation, iter(descriptors), self._world)
        self._lines[message.worker] = line
        self.listen(line)

    # How they come to take part: all at the beginning (`plesio.server.opening`), late ones while the others train

    def _prepares(self, line: Line, message: protocol.Hello | protocol.Ready, descriptors: Sequence[int] = ()) -> None:
        """A worker is nearer to taking part; raises `PlesioError` if its model is not the others'. `descriptors`: of a file with
        rows that it brings."""
        blocks = self._opening.blocks
        if isinstance(message, protocol.Ready):
            line.ready = True
            if blocks is not None and descriptors:
                blocks.brought = from_memory(descriptors[0])
        else:
            line.hello, line.late = message, blocks is not None
            if blocks is not None:
                blocks.check(message)
        if not self.program.begun:
            self.proceed()
        elif line.ready:
            self._late.append(line)
        elif blocks is not None:
            line.say(*blocks.welcome(line.worker, first=False))

    def proceed(self) -> None:
        """When every live worker is ready, training begins."""
        self._opening.proceed(self.program.stopping)
        blocks = self._opening.blocks
        if blocks is None or not self._opening.complete or self._tables.lacking():
            return
        beside = (*self._turns.beside, *self._tables.rows(blocks))
        now_s, machine = self.now_s(), Machine(blocks, log=self._turns.log, beside=beside)
        try:
            self.program.begin(machine, now_s)
        except PlesioError as error:  # the workers wait for their doorbells by now: the engine ends them
            self.program.trouble(None, str(error), str(error), type(error).__name__)
            return
        self.machine = machine
        if not machine.blocks.folds:
            present = [line for line in self._lines if line is not None]
            self._peers = Peers(self.program, present, machine.blocks.board, now_s)
            self._hear |= self._peers.hear
        self._begun(machine, now_s)
        lines = [line for line in self._lines if line is not None]
        for line in sorted(lines, key=lambda line: not line.gone):  # the data of the gone is for the others
            if line.gone:
                self.program.left(line.worker, line.incarnation, not line.finished, now_s, line.early)
            else:
                self._join(line, now_s)

    def seat_late(self) -> None:
        """Let those take part that came late, once what the one before has left in their slot is folded."""
        for line in self._late[:]:
            if line.gone or not self.program.sequencer.holds_slot_of(line.worker):
                self._late.remove(line)
                if not line.gone:
                    self._join(line, self.now_s())

    def _join(self, line: Line, now_s: float) -> None:
        """A worker takes part. The run has one more, if nobody was to have that seat."""
        if line.worker >= self.program.sequencer.workers and not line.leaving:
            self.program.scale(line.worker + 1, now_s)
        hello = line.hello
        if self._opening.takes_over and hello is not None and line.worker not in self._came:  # else it saw them here
            self._came.add(line.worker)
            self._count_undone(line.worker, hello.version - self.program.began_at)
        self.program.joined(line.worker, line.incarnation, now_s, hello.at if hello is not None else None)

    def _count_undone(self, worker: int, undone: int) -> None:
        """It had seen so many versions of the head before that this one has not."""
        if undone > self._undone:
            self._undone = undone
            what = f"{undone} updates that worker {worker} had seen are undone: no standby had them. Their data is trained again"
            self.program.trouble(worker, what)

    # What they say

    def from_channel(self, line: Line) -> None:
        try:
            message, descriptors = line.channel.receive(MESSAGE_S)
        except ChannelClosedError:
            self._handlers.remove(line.channel.fileno())  # its doorbell tells the rest
            return
        except ProtocolError as error:
            self._cut_off(line, error)
            return
        match message:
            case protocol.LeaseRequest() | RowsRequest():
                if self._world.once(lambda: readable(line.messages.descriptor, 0.0)):  # what it said before it asked
                    self.from_doorbell(line)
                self._give(line, message)
            case protocol.StateWanted():
                carried, block = self.machine.state_for(line.worker)
                line.say(protocol.StateGiven(carried, self.program.version), (block.fd,))
                block.close()
            case protocol.GroupWanted():
                self._turns.is_old = True
                line.say(self.meeting.group(line.worker in self.program.sequencer.waited_for, self.program.stopping))
            case protocol.Hello() | protocol.Ready():
                try:
                    self._prepares(line, message, descriptors)
                except PlesioError as error:
                    self._refuse(line, error)

    def _give(self, line: Line, need: protocol.Need) -> None:
        if line.gone:
            return
        if line.leaving and isinstance(need, protocol.LeaseRequest):
            line.say(protocol.LeaseReply(stop=True))
            return
        try:
            self.program.supplies[type(need)](line.worker, line.incarnation, need, self.now_s())
        except ConfigurationError as error:  # its worker has looked, too
            self._cut_off(line, error)

    def from_doorbell(self, line: Line) -> None:
        try:
            messages = line.messages.read()
            for message in messages or ():
                if type(message) not in self._hear:
                    raise ProtocolError(
                        f"worker {line.worker} said {type(message).__name__}, which has no place in this run"
                    )
                self._hear[type(message)](line.worker, line.incarnation, message, self._world.now_s())
        except ProtocolError as error:
            self._cut_off(line, error)
            return
        if messages is None:
            self.lost(line)

    def _cut_off(self, line: Line, error: PlesioError) -> None:
        self.program.trouble(line.worker, f"{error}: hung up on")
        self.lost(line)

    def _farewell(self, worker: int, incarnation: int, farewell: protocol.Farewell, now_s: float) -> None:
        line = self.of(worker)
        line.finished, line.early, line.leaving = True, farewell.early, line.leaving or farewell.early
        self.program.meter.workers[worker].samples += farewell.samples

    def lost(self, line: Line, how: str = "died") -> None:
        """A worker's pipe is closed, or is to be."""
        if line.gone:
            return
        self._close(line)
        self.emptied_s = now_s = self.now_s()
        died = not line.finished
        self.program.over(line.worker, died, how, told=line.leaving)
        if self._peers is not None:
            self._peers.gone(line.worker, died, now_s, line.early)
        elif self.program.begun:
            self.program.left(line.worker, line.incarnation, died, now_s, line.early)
        else:
            self.proceed()

    def _close(self, line: Line) -> None:
        self._turns.is_old = True
        self._handlers.remove(line.messages.descriptor)
        self._handlers.remove(line.channel.fileno())
        line.close()

    def hang_up(self) -> None:
        """Part with those who are members no longer, and with those who do not read what they are answered."""
        while self._evicted:
            line = self._evicted.pop()
            line.finished = True
            self._close(line)
        while self._unresponsive:
            line = self._unresponsive.pop()
            if not line.gone:
                self.program.trouble(line.worker, f"worker {line.worker} does not read what it is answered: cut off")
                self.lost(line)


def _write(line: Line, answer: Located, number: int) -> float:
    """Answer a worker; when that was done, or 0 if there is no room for it."""
    try:
        write_answer(line.answer, *answer, number)
    except BlockingIOError:
        return 0.0
    return time.monotonic()
