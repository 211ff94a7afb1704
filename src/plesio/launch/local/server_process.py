"""The server process: hears whoever says something, and has it decided.

It has no other thread: a doorbell would cost the interpreter's switch interval. One loop polls every worker's pipe and
channel, the evaluator and the engine; whatever peer dies is noticed as the end of its file.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from msgspec.structs import replace

from plesio.config.evaluations import Due
from plesio.core.events import Cancel, Evict, Grant, Ticked
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.errors import ConfigurationError, DeadlineError, PlesioError
from plesio.launch.job import Job, pace_of
from plesio.launch.local.arrivals import Arrivals
from plesio.launch.local.handlers import Handlers
from plesio.launch.local.meeting import Meeting
from plesio.launch.local.table_links import TableLinks
from plesio.launch.local.turns import OVER, TICK, Turns
from plesio.memory.blocks import Blocks
from plesio.memory.machine import ENGINE, Machine
from plesio.observe.meter import Meter
from plesio.protocol import launcher
from plesio.protocol import worker as protocol
from plesio.protocol.coding import ProtocolError
from plesio.protocol.evaluator import Asked
from plesio.protocol.journal import JournalError, JournalWriter
from plesio.protocol.launcher import Begun, Lately, Progress, RoundMade, StopRequest, Trouble, Writing
from plesio.protocol.table_server import FromTableServer
from plesio.server.checkpointer import Checkpointer
from plesio.server.figures import Figures
from plesio.server.interfaces import Replies
from plesio.server.lines import Line
from plesio.server.opening import Opening
from plesio.server.peers import Peers
from plesio.server.program import Program
from plesio.server.recording import Recorder
from plesio.server.snapshots import Snapshots
from plesio.transport.channel import Channel, ChannelClosedError, readable
from plesio.transport.doorbell import Located, Lookout, write_answer

TICK_S = 0.1
MESSAGE_S = 10.0


class Server(Replies):
    """One run's server process. It answers the workers for its program: over their pipes, and on their channels. `turns`: what
    there is around those of its loop."""

    machine: Machine  # once there is a model

    def __init__(
        self,
        job: Job,
        engine: Channel[launcher.ToServer],
        evaluator: Channel[Asked] | None,
        lines: list[Line | None],
        writer: JournalWriter | None = None,
        table_servers: Sequence[Channel[FromTableServer]] = (),
        turns: Turns | None = None,
    ) -> None:
        config, strategy = job.config, job.config.strategy
        self._timeout_s = config.timeout_s
        self._turns = turns or Turns()
        self._world, log = self._turns.world, self._turns.log
        self._sent = self._world.sent
        self._begins_anew = strategy.every.among_ranks  # a worker that lost one of its processes
        self.engine = engine
        self._lines = lines
        self._listening = job.listening
        self._meter = Meter(config.workers, seats=config.seats)
        for one in self._meter.workers:
            one.nominal = pace_of(config, one.worker)
        self._recorder = Recorder(writer if strategy.via.at_server else None, self._journal_ends)
        workers, seats = config.workers, config.seats
        checkpointer = Checkpointer(
            job.keeping, strategy, workers, seats, job.comes_and_goes, config.together, self._world.once
        )
        holds = checkpointer.holds and job.listening is None  # else workers are elsewhere
        self._tables = tables = TableLinks(table_servers, seats + 1, config.timeout_s)
        lay_out = partial(
            Blocks,
            strategy,
            workers,
            evaluates=evaluator is not None,
            seats=seats,
            holds=holds,
            servers=tables.servers,
            ranks=1 if strategy.every.among_ranks else config.ranks,
            survives=log is not None,
            rows_survive=config.durability == "process",
        )
        self._opening = Opening(lambda hellos: tables.welcome(lay_out(hellos)), lines, workers)
        self._freed: list[tuple[int, Located]] = []  # who is answered when the decision is done
        self._unresponsive: list[Line] = []  # there was no room to answer them: cut off when all is done
        self._evicted: list[Line] = []  # members no longer: hung up when all is done
        self.program = program = Program(
            strategy,
            Sequencer(strategy, workers, DataLeases(workers, config.stealing, lone=config.lone), config.timeout_s),
            self,
            self._meter,
            recorder=self._recorder,
            checkpointer=checkpointer,
            tell=self._tell,
            raise_on_nonfinite=config.on_nonfinite == "raise",
            by_round=job.by_round,
        )
        self._figures = Figures(program)
        self._arrivals = Arrivals(lines, self._opening, program, self._begun, tables, self._world.now_s, log)
        due = Due(config.evaluations)
        self._snapshots = Snapshots(
            evaluator,
            lambda: program.standing(self.now_s()),
            program.is_finite,
            lambda: due(program.version, program.before.steps + self._meter.steps),
        )
        self._peers: Peers | None = None
        self._meeting = Meeting(lines)
        self.handlers = Handlers()
        self._hear: dict[type, Callable[[int, int, Any, float], None]] = {
            protocol.Contribution: program.pushed,
            protocol.DroppedStep: program.abandoned,
            protocol.AskAhead: lambda worker, _, asked, now_s: self._give(self._line(worker), asked.request),
            protocol.Farewell: self._farewell,
        }
        self._has_ended = False
        self._next_tick_s = self._emptied_s = 0.0
        self._wake_s = inf
        self._started_s = self.now_s()

    def why_not_durable(self) -> str:
        """Why nobody could go on from what this process leaves; empty if somebody could."""
        if self._meeting.has_begun:
            return "the workers have met for collectives of torch.distributed, by a store in its own memory"
        return self.machine.why_not_durable

    # Answers; none is asked for again: pipes lose nothing

    def now_s(self) -> float:
        return self._world.now_s()

    def granted(self, grant: Grant, answer: Located) -> float:
        """Who has waited sleeps, and takes this core when it is woken: first whoever has just spoken, and is awake."""
        if grant.freed_by_other:
            self._freed.append((grant.worker, answer))
            return self.now_s()
        return self._answer(grant.worker, answer)

    def called_off(self, cancel: Cancel, answer: Located) -> float:
        return self._answer(cancel.worker, answer)  # unasked

    def decided(self) -> None:
        for worker, answer in self._freed:
            self._answer(worker, answer)
        self._freed.clear()

    def _answer(self, worker: int, answer: Located) -> float:
        line = self._line(worker)
        line.answers += 1
        sent_s = self._sent(_write, line, answer.stopping() if line.leaving else answer)
        if not sent_s:
            self._unresponsive.append(line)
        return sent_s or self.now_s()

    def wake_at(self, time_s: float) -> None:
        self._wake_s = time_s

    def supplied(self, worker: int, reply: protocol.Supply) -> None:
        self._line(worker).say(reply)

    def round_ended(self, made: RoundMade) -> None:
        """The engine looks at it, and lets the next round begin."""
        self.program.is_finite()
        machine, blocks = self.machine, self.machine.blocks
        structure = blocks.structure if machine.rows is None else b""  # the engine has no rows of tables
        made = replace(made, lies=machine.view(ENGINE), model=blocks.model, structure=structure)
        self.engine.send(made, (blocks.ring_descriptor,))

    def refused(self, worker: int, why: str) -> None:
        self._refuse(self._line(worker), ConfigurationError(why))

    def _refuse(self, line: Line, error: PlesioError) -> None:
        """A latecomer that is not like the others has to go, and another may take its seat. Of those that were there at the
        beginning nobody knows who is right: what they raise ends the run."""
        line.say(protocol.Refused(type(error).__name__, str(error), line.late))
        if line.late:
            self._lost(line, f"was refused ({error})")

    def evicted(self, evict: Evict) -> None:
        self._evicted.append(self._line(evict.worker))

    # The loop

    def run(self) -> None:
        """Serve until every worker is gone, then tell the engine what it cost."""
        try:
            self._run()
        except DeadlineError as error:  # a table server does not answer
            self.program.trouble(None, str(error), f"{error}; is it stopped?", "ServerLostError")

    def _run(self) -> None:
        self.handlers.add(self.engine.fileno(), self._from_engine)
        if self._snapshots.evaluator is not None:
            descriptor = self._snapshots.evaluator.fileno()
            self.handlers.add(descriptor, partial(self._from_evaluator, descriptor))
        for line in self._opening.live():
            self._listen(line)
        self._tables.listen(self.handlers, self._arrivals.proceed)
        gc.freeze()  # what was there before the fork is never garbage: do not look through it
        lookout, turns = Lookout(self.handlers.poller), self._turns
        take = turns.of(self)
        while not (self._has_ended or self._over()):
            for descriptor, _ in lookout.wait(self._patience_s()):
                take(descriptor, time.monotonic())
            if (now_s := time.monotonic()) >= min(self._next_tick_s, self._wake_s):
                take(TICK, now_s)
            turns.rest(self)
        if not self._has_ended:
            take(OVER, time.monotonic())

    def take(self, source: int, now_s: float) -> None:
        """Take a turn: something has come on this descriptor, time went by, or all is over."""
        if source >= 0:
            self.handlers.call(source)
            self._hang_up()
            self._arrivals.seat_late()
        elif source == TICK:
            self._tick(now_s)
        else:
            self._finish()
            self._has_ended = True
            return
        self._serve_evaluator()  # what was not due yet when it asked

    def _patience_s(self) -> float:
        """How long nobody need speak: until the next tick, or the end of a grace."""
        return min(TICK_S, max(0.0, min(self._next_tick_s, self._wake_s) - time.monotonic()))

    def _over(self) -> bool:
        """Whether nobody works any more, and nobody is waited for."""
        if self._opening.live():
            return False
        if self._listening is None and not self._begins_anew:  # nobody comes any more
            return True
        if self.program.stopping or any(line and line.finished and not line.leaving for line in self._lines):
            return True
        patience_s = self._listening.rejoin_s if self._listening is not None else self._timeout_s
        return self._emptied_s > 0 and time.monotonic() - self._emptied_s > patience_s

    def _line(self, worker: int) -> Line:
        line = self._lines[worker]
        assert line is not None, "it has come"
        return line

    def _listen(self, line: Line) -> None:
        self._turns.is_old = True
        self.handlers.add(line.messages.descriptor, partial(self._from_doorbell, line))
        self.handlers.add(line.channel.fileno(), partial(self._from_channel, line))

    def _tick(self, now_s: float) -> None:
        program = self.program
        if now_s >= self._wake_s:
            program.receive(Ticked(), now_s)
        if now_s < self._next_tick_s:
            return
        self._next_tick_s = now_s + TICK_S
        if not program.begun and now_s - self._started_s > self._timeout_s:
            late = filter(None, (self._opening.lacking(), self._tables.lacking()))
            why = f"{' and '.join(late)} within {self._timeout_s:g} s"
            program.trouble(None, why, f"training did not begin: {why}; the others waited", "DeadlineError")
        if self._peers is not None:
            self._peers.tick(now_s)
        program.tick(now_s)
        if program.begun:
            self.tell_engine(self._figures.progress(now_s))
        self._hang_up()

    def _hang_up(self) -> None:
        """Part with those who are members no longer, and with those who do not read what they are answered."""
        while self._evicted:
            line = self._evicted.pop()
            line.finished = True
            self._close(line)
        while self._unresponsive:
            line = self._unresponsive.pop()
            if not line.gone:
                self.program.trouble(line.worker, f"worker {line.worker} does not read what it is answered: cut off")
                self._lost(line)

    # What comes

    def _from_engine(self) -> None:
        message, descriptors = self.engine.receive(MESSAGE_S)
        match message:
            case launcher.Opened():
                self._opened(message, descriptors)
            case launcher.Scale(workers):
                self._scale(workers)
            case launcher.BeginRound(clients):
                self.machine.folder.forget(ENGINE)
                self.program.begin_round(clients, self.now_s())
            case launcher.Keep():
                self.program.keep(self.now_s())
            case launcher.Measure(window_s):
                self.tell_engine(self._figures.lately(self.now_s(), window_s))
            case launcher.Emptied(worker):
                self._lost(self._line(worker))
            case launcher.Stop():
                if self._opening.blocks is not None:
                    self._opening.blocks.board.stopped = 1
                self.program.stop(self.now_s())
            case _:
                self.program.order(message, self.now_s())

    def _scale(self, workers: int) -> None:
        """The run is to have so many workers. Whoever has a seat above that leaves, even if there are more again by then."""
        for line in self._opening.live():
            line.leaving = line.leaving or line.worker >= workers
        self.program.scale(workers, self.now_s())

    def _opened(self, message: launcher.Opened, descriptors: list[int]) -> None:
        """Somebody has taken a seat, perhaps that of one who died."""
        older = self._lines[message.worker]
        if older is not None:
            self._lost(older)
            self.program.returned(message.worker)
        self.program.meter.workers[message.worker].away = message.away
        line = Line.open(message.worker, message.incarnation, iter(descriptors), self._world)
        self._lines[message.worker] = line
        self._listen(line)

    def _from_evaluator(self, descriptor: int) -> None:
        if not self._snapshots.hear(MESSAGE_S):
            self.handlers.remove(descriptor)

    def _serve_evaluator(self) -> None:
        if self.program.begun and not self.program.stopping and self._snapshots.wanted():  # the last one comes unasked
            self.program.when_whole(partial(self._snapshots.send, self.machine, final=False))

    def _from_channel(self, line: Line) -> None:
        try:
            message, descriptors = line.channel.receive(MESSAGE_S)
        except ChannelClosedError:
            self.handlers.remove(line.channel.fileno())  # its doorbell tells the rest
            return
        except ProtocolError as error:
            self._cut_off(line, error)
            return
        match message:
            case protocol.LeaseRequest() | protocol.RowsRequest():
                if self._world.once(lambda: readable(line.messages.descriptor, 0.0)):  # what it said before it asked
                    self._from_doorbell(line)
                self._give(line, message)
            case protocol.StateWanted():
                carried, block = self.machine.state_for(line.worker)
                line.say(protocol.StateGiven(carried, self.program.version), (block.fd,))
                block.close()
            case protocol.GroupWanted():
                self._turns.is_old = True
                line.say(self._meeting.group(line.worker in self.program.sequencer.waited_for, self.program.stopping))
            case protocol.Hello() | protocol.Ready():
                try:
                    self._arrivals.prepares(line, message, descriptors)
                except PlesioError as error:
                    self._refuse(line, error)

    def _give(self, line: Line, need: protocol.Need) -> None:
        if line.gone:
            return
        if line.leaving and isinstance(need, protocol.LeaseRequest):
            line.say(protocol.LeaseReply(stop=True))
            return
        try:
            self.program.wanted(line.worker, line.incarnation, need, self.now_s())
        except ConfigurationError as error:  # its worker has looked, too
            self._cut_off(line, error)

    def _from_doorbell(self, line: Line) -> None:
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
            self._lost(line)

    def _cut_off(self, line: Line, error: PlesioError) -> None:
        self.program.trouble(line.worker, f"{error}: hung up on")
        self._lost(line)

    def _farewell(self, worker: int, incarnation: int, farewell: protocol.Farewell, now_s: float) -> None:
        self._line(worker).finished = True
        self.program.meter.workers[worker].samples += farewell.samples

    def _lost(self, line: Line, how: str = "died") -> None:
        """A worker's pipe is closed, or is to be."""
        if line.gone:
            return
        self._close(line)
        self._emptied_s = now_s = self.now_s()
        died = not line.finished
        self.program.over(line.worker, died, how, told=line.leaving)
        if self._peers is not None:
            self._peers.gone(line.worker, died, now_s)
        elif self.program.begun:
            self.program.left(line.worker, line.incarnation, died, now_s)
        else:
            self._arrivals.proceed()

    def _close(self, line: Line) -> None:
        self._turns.is_old = True
        self.handlers.remove(line.messages.descriptor)
        self.handlers.remove(line.channel.fileno())
        line.close()

    def _begun(self, machine: Machine, now_s: float) -> None:
        self.machine, blocks = machine, machine.blocks
        self._meter.begin(now_s)
        self.tell_engine(Begun())
        if not blocks.folds:
            lines = [line for line in self._lines if line is not None]
            self._peers = Peers(self.program, lines, blocks.board, now_s)
            self._hear |= self._peers.hear
        self._snapshots.begin(machine)

    # Ending

    def _finish(self) -> None:
        program = self.program
        program.end(self.now_s())
        if not program.begun:
            self.engine.send(self._figures.final(self.now_s()))
            return
        machine = self.machine
        self._snapshots.send(machine, final=True)
        lies = machine.view(ENGINE, final=True)
        program.close(self.now_s())
        figures = self._figures.final(self.now_s(), lies, machine.blocks.model)
        self.engine.send(figures, (machine.blocks.ring_descriptor, *program.left_over()))
        self._snapshots.see_out(self._timeout_s)

    def _tell(self, message: Trouble | Writing | StopRequest) -> None:
        """Tell the engine; what happened is put on record, too."""
        if isinstance(message, Trouble):
            what, worker = message.incident.what, message.incident.worker
            self._recorder.keep(JournalWriter.note, what, self.now_s(), worker)
        self.tell_engine(message)

    def _journal_ends(self, error: JournalError) -> None:
        self.program.trouble(None, f"{error}; the journal ends here, and later versions cannot be replayed")

    def tell_engine(self, message: Begun | Progress | Lately | Trouble | Writing | StopRequest) -> None:
        """While it is stopped (Ctrl-Z) training goes on: it is told later, and of progress not at all."""
        if self.engine.has_room or not isinstance(message, Progress | Lately):
            self.engine.send_in_time(message)


def _write(line: Line, answer: Located) -> float:
    """Answer a worker; when that was done, or 0 if there is no room for it."""
    try:
        write_answer(line.answer, *answer, line.answers)
    except BlockingIOError:
        return 0.0
    return time.monotonic()
