"""The server process: hears whoever says something, and has it decided.

It has no other thread: a doorbell would cost the interpreter's switch interval. One loop polls every worker's pipe and
channel, the evaluator and the engine; whatever peer dies is noticed as the end of its file.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from functools import partial
from math import inf

from msgspec.structs import replace

from plesio.config.evaluations import Due
from plesio.core.events import Ticked
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.errors import DeadlineError
from plesio.launch.job import Job, pace_of
from plesio.launch.local.handlers import Handlers
from plesio.launch.local.table_links import TableLinks
from plesio.launch.local.turns import OVER, TICK, Turns
from plesio.launch.local.worker_lines import MESSAGE_S, WorkerLines
from plesio.memory.blocks import Blocks
from plesio.memory.machine import ENGINE, Machine
from plesio.memory.surviving import why_not
from plesio.observe.meter import Meter
from plesio.protocol import launcher
from plesio.protocol.evaluator import Asked
from plesio.protocol.journal import JournalError, JournalWriter
from plesio.protocol.launcher import Begun, Lately, Progress, RoundMade, StopRequest, Trouble, Writing
from plesio.protocol.reading import VersionRequest
from plesio.protocol.table_server import FromTableServer
from plesio.server.checkpointer import Checkpointer
from plesio.server.figures import Figures
from plesio.server.lines import Line
from plesio.server.opening import Opening
from plesio.server.program import Program
from plesio.server.readings import Readings
from plesio.server.recording import Recorder
from plesio.server.snapshots import Snapshots
from plesio.transport.channel import Channel
from plesio.transport.doorbell import Lookout
from plesio.transport.limits import LEASE_S

TICK_S = 0.1


class Server:
    """One run's server process. `turns`: what there is around those of its loop."""

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
        readers: Channel[VersionRequest] | None = None,
    ) -> None:
        config, strategy = job.config, job.config.strategy
        self._timeout_s = config.timeout_s
        self._turns = turns or Turns()
        world, log = self._turns.world, self._turns.log
        self.now_s = world.now_s
        self._begins_anew = strategy.begins_anew
        self.engine = engine
        self._lines = lines
        self._listening = job.listening
        self._meter = Meter(config.workers, seats=config.seats)
        for one in self._meter.workers:
            one.nominal = pace_of(config, one.worker)
        self._recorder = Recorder(writer if strategy.via.at_server else None, self._journal_ends)
        workers, seats = config.workers, config.seats
        checkpointer = Checkpointer(
            job.keeping, strategy, workers, seats, job.comes_and_goes, config.together, world.once
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
            reads=readers is not None,
        )
        takes_over = job.listening is not None and job.listening.takes_over > 0
        self._opening = Opening(lambda hellos: tables.welcome(lay_out(hellos)), lines, workers, takes_over)
        self.handlers = Handlers()
        self.workers = WorkerLines(
            lines, self.handlers, self._turns, self._opening, tables, self._begun, self._round_ended
        )
        self.program = program = Program(
            strategy,
            Sequencer(strategy, workers, DataLeases(workers, config.stealing, lone=config.lone), config.timeout_s),
            self.workers,
            self._meter,
            recorder=self._recorder,
            checkpointer=checkpointer,
            tell=self._tell,
            raise_on_nonfinite=config.on_nonfinite == "raise",
            by_round=job.by_round,
        )
        self._figures = Figures(program)
        self.workers.serve(program)
        due = Due(config.evaluations)
        self._snapshots = Snapshots(
            evaluator,
            lambda: program.standing(self.now_s()),
            program.is_finite,
            lambda: due(program.version, program.before.steps + self._meter.steps),
        )
        self._readings = Readings(readers, lambda: program.standing(self.now_s())) if readers is not None else None
        self._has_ended = False
        self._next_tick_s = 0.0
        self._started_s = self.now_s()

    def why_not_durable(self) -> str:
        """Why nobody could go on from what this process leaves; empty if somebody could."""
        if self.workers.meeting.has_begun:
            return "the workers have met for collectives of torch.distributed, by a store in its own memory"
        return why_not(self.machine.blocks) or self.machine.lost

    def _round_ended(self, made: RoundMade) -> None:
        """The engine looks at it, and lets the next round begin."""
        self.program.is_finite()
        machine, blocks = self.machine, self.machine.blocks
        structure = blocks.structure if machine.rows is None else b""  # the engine has no rows of tables
        made = replace(made, lies=machine.view(ENGINE), model=blocks.model, structure=structure)
        self.engine.send(made, (blocks.ring_descriptor,))

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
            self.handlers.add(descriptor, partial(self._hear_of, self._snapshots, descriptor))
        if self._readings is not None and self._readings.readers is not None:
            descriptor = self._readings.readers.fileno()
            self.handlers.add(descriptor, partial(self._hear_of, self._readings, descriptor))
        for line in self._opening.live():
            self.workers.listen(line)
        self._tables.listen(self.handlers, self.workers.proceed)
        gc.freeze()  # what was there before the fork is never garbage: do not look through it
        lookout, turns = Lookout(self.handlers.poller), self._turns
        take = turns.of(self)
        while not (self._has_ended or self._over()):
            for descriptor, _ in lookout.wait(self._patience_s()):
                take(descriptor, time.monotonic())
            if (now_s := time.monotonic()) >= min(self._next_tick_s, self.workers.wake_s):
                take(TICK, now_s)
            turns.rest(self)
        if not self._has_ended:
            take(OVER, time.monotonic())

    def take(self, source: int, now_s: float) -> None:
        """Take a turn: something has come on this descriptor, time went by, or all is over."""
        if source >= 0:
            self.handlers.call(source)
            self.workers.hang_up()
            self.workers.seat_late()
        elif source == TICK:
            self._tick(now_s)
        else:
            self._finish()
            self._has_ended = True
            return
        self._show()  # what was not due yet when it was asked for

    def _patience_s(self) -> float:
        """How long nobody need speak: until the next tick, or the end of a grace."""
        return min(TICK_S, max(0.0, min(self._next_tick_s, self.workers.wake_s) - time.monotonic()))

    def _over(self) -> bool:
        """Whether nobody works any more, and nobody is waited for."""
        if self._opening.live():
            return False
        if self._listening is None and not self._begins_anew:  # nobody comes any more
            return True
        if self.program.stopping:
            return True
        if self._opening.may_come_back and time.monotonic() - self._started_s < LEASE_S:
            return False
        if any(line and line.finished and not line.leaving for line in self._lines):
            return True
        patience_s = self._listening.rejoin_s if self._listening is not None else self._timeout_s
        emptied_s = self.workers.emptied_s or (self._started_s if self._opening.takes_over else inf)
        return time.monotonic() - emptied_s > patience_s

    def _tick(self, now_s: float) -> None:
        program = self.program
        if now_s >= self.workers.wake_s:
            program.receive(Ticked(), now_s)
        if now_s < self._next_tick_s:
            return
        self._next_tick_s = now_s + TICK_S
        if not program.begun and now_s - self._started_s > self._timeout_s:
            late = filter(None, (self._opening.lacking(), self._tables.lacking()))
            why = f"{' and '.join(late)} within {self._timeout_s:g} s"
            program.trouble(None, why, f"training did not begin: {why}; the others waited", "DeadlineError")
        self.workers.tick(now_s)
        program.tick(now_s)
        if program.begun:
            self.tell_engine(self._figures.progress(now_s))
        self.workers.hang_up()

    # What comes

    def _from_engine(self) -> None:
        message, descriptors = self.engine.receive(MESSAGE_S)
        match message:
            case launcher.Opened():
                self.workers.open(message, descriptors)
            case launcher.Scale(workers):
                self._scale(workers)
            case launcher.BeginRound():
                self.machine.folder.forget(ENGINE)
                self.program.orders[type(message)](message, self.now_s())
            case launcher.Keep():
                self.program.keep(self.now_s())
            case launcher.Measure(window_s):
                self.tell_engine(self._figures.lately(self.now_s(), window_s))
            case launcher.Emptied(worker):
                self.workers.lost(self.workers.of(worker))
            case launcher.Stop():
                if self._opening.blocks is not None:
                    self._opening.blocks.board.stopped = 1
                self.program.stop(self.now_s())
            case _:
                self.program.orders[type(message)](message, self.now_s())

    def _scale(self, workers: int) -> None:
        """The run is to have so many workers. Whoever has a seat above that leaves, even if there are more again by then."""
        for line in self._opening.live():
            line.leaving = line.leaving or line.worker >= workers
        self.program.scale(workers, self.now_s())

    def _hear_of(self, onlooker: Snapshots | Readings, descriptor: int) -> None:
        if not onlooker.hear(MESSAGE_S):
            self.handlers.remove(descriptor)

    def _show(self) -> None:
        """Show the current version to the evaluator and the readers, if they are waiting for it."""
        program = self.program
        if not program.begun or program.stopping:  # the last one comes unasked
            return
        if self._snapshots.wanted():
            program.when_whole(partial(self._snapshots.send, self.machine, final=False))
        if self._readings is not None:
            self.machine.blocks.board.version = program.version
            if self._readings.wanted(program.version):
                program.when_whole(partial(self._readings.send, self.machine))

    def _begun(self, machine: Machine, now_s: float) -> None:
        self.machine = machine
        self._meter.begin(now_s)
        self.tell_engine(Begun())
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
        if self._readings is not None:
            machine.blocks.board.version = program.version
            self._readings.send(machine, final=True)
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
