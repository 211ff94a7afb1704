"""The server process: hears whoever says something, and has it decided.

It has no other thread: a doorbell would cost the interpreter's switch interval. One loop polls every worker's pipe and
channel, the evaluator and the engine; whatever peer dies is noticed as the end of its file.
"""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from plesio.core.events import Cancel, Discard, Evict, Grant
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.errors import PlesioError
from plesio.launch.job import Job
from plesio.observe.meter import Meter
from plesio.protocol import worker as protocol
from plesio.protocol.evaluator import SnapshotRequest
from plesio.protocol.journal import JournalError, JournalWriter
from plesio.protocol.launcher import Begun, Final, Progress, Stop, Trouble, Writing
from plesio.server.answers import answer_to
from plesio.server.assembly import Assembly
from plesio.server.checkpointer import Checkpointer
from plesio.server.departures import Departures
from plesio.server.lines import Line
from plesio.server.opening import Opening
from plesio.server.program import Program
from plesio.server.recording import Recorder
from plesio.server.rendezvous import Rendezvous
from plesio.server.snapshots import Snapshots
from plesio.transport.channel import Channel, ChannelClosedError, readable
from plesio.transport.doorbell import Lookout, write_answer

TICK_S = 0.1
MESSAGE_S = 10.0
FINAL = -2
"""The reader of the ring for the engine, at the end."""


class Server:
    """One run's server process. It answers the workers for its program: over their pipes, and on their channels.

    Args:
        job: what is run.
        engine: the channel to the engine.
        evaluator: the channel to the evaluator, if there is one.
        lines: one for each worker.
        writer: of the journal, if one is kept.
    """

    def __init__(
        self,
        job: Job,
        engine: Channel[Stop],
        evaluator: Channel[SnapshotRequest] | None,
        lines: list[Line],
        writer: JournalWriter | None = None,
    ) -> None:
        config, strategy = job.config, job.config.strategy
        self._timeout_s = config.timeout_s
        self._via = strategy.via
        self._engine = engine
        self._lines = lines
        self._opening = Opening(partial(Assembly, strategy, config.workers, evaluates=evaluator is not None), lines)
        self._meter = Meter(config.workers)
        self._recorder = Recorder(writer if strategy.via.at_server else None, self._journal_ends)
        self._checkpointer = Checkpointer(job.keeping, strategy, config.workers)
        self._unresponsive: list[Line] = []  # there was no room to answer them: cut off when all is done
        self._evicted: list[Line] = []  # members no longer: hung up when all is done
        self.now_s = time.monotonic
        leases = DataLeases(config.workers, config.stealing)
        self._program = program = Program(
            strategy,
            Sequencer(strategy, config.workers, leases, config.timeout_s),
            self,
            self._meter,
            recorder=self._recorder,
            checkpointer=self._checkpointer,
            tell=self._tell,
            raise_on_nonfinite=config.on_nonfinite == "raise",
        )
        self._snapshots = Snapshots(evaluator, lambda: program.standing(time.monotonic()), program.is_finite)
        self._rendezvous: Rendezvous | None = None
        self._departures: Departures | None = None
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._hear: dict[type[protocol.FromWorker], Callable[[int, int, Any, float], None]] = {
            protocol.Contribution: program.pushed,
            protocol.DroppedStep: program.abandoned,
            protocol.WorkDone: self._work_done,
            protocol.CheckIn: self._checked_in,
            protocol.MirrorFilled: self._mirror_filled,
            protocol.CheckOut: self._checked_out,
            protocol.Farewell: self._farewell,
        }
        self._next_tick_s = 0.0
        self._started_s = time.monotonic()

    @property
    def _memory(self) -> Assembly:
        assert self._program.memory is not None, "nobody contributes before the model is there"
        return self._program.memory

    # Answers

    def granted(self, effect: Grant | Cancel, buffer: int) -> float:
        """Write into its pipe."""
        line = self._lines[effect.worker]
        before = self._checkpointer.before[effect.worker]
        try:
            write_answer(line.answer, *answer_to(effect, buffer, before, self._program.stopping))
        except BlockingIOError:
            self._unresponsive.append(line)
        return time.monotonic()

    called_off = granted  # unasked

    def leased(self, worker: int, reply: protocol.LeaseReply) -> None:
        """Tell it on its channel."""
        self._lines[worker].say(reply)

    def refused(self, worker: int, why: str) -> None:
        """Tell it on its channel: it raises that."""
        self._lines[worker].say(protocol.Refused("ConfigurationError", why))

    def repeated(self, discard: Discard) -> None:
        """Its worker has the answer: pipes lose nothing."""

    def evicted(self, evict: Evict) -> None:
        """Its line is hung up once all is done."""
        self._evicted.append(self._lines[evict.worker])

    # The loop

    def run(self) -> None:
        """Serve until every worker is gone, then tell the engine what it cost."""
        self._watch(self._engine.fileno(), self._from_engine)
        if self._snapshots.evaluator is not None:
            descriptor = self._snapshots.evaluator.fileno()
            self._watch(descriptor, partial(self._from_evaluator, descriptor))
        for line in self._lines:
            self._watch(line.messages.descriptor, partial(self._from_doorbell, line))
            self._watch(line.channel.fileno(), partial(self._from_channel, line))
        gc.freeze()  # what was there before the fork is never garbage: do not look through it
        lookout = Lookout(self._poller)
        while not all(line.gone for line in self._lines):
            for descriptor, _ in lookout.wait(TICK_S):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
                    self._hang_up()
            self._tick()
        self._finish()

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poller.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._poller.unregister(descriptor)

    def _tick(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_tick_s:
            return
        self._next_tick_s = now_s + TICK_S
        program = self._program
        if not program.begun and now_s - self._started_s > self._timeout_s:
            why = f"{self._opening.lacking()} did not get as far as prepare within {self._timeout_s:g} s"
            program.trouble(None, why, f"training did not begin: {why}; the others waited", "DeadlineError")
        program.tick(now_s)
        if program.begun:
            meter = self._meter
            self._tell_engine(Progress(now_s - meter.zero_s, program.version, meter.steps, meter.samples))
        if self._rendezvous is not None:
            for worker, silent_s in self._rendezvous.tick(now_s):
                self._leave(worker)
                self._settle(concluded=True)
                program.evict(worker, self._lines[worker].incarnation, silent_s, now_s)
        self._hang_up()

    def _hang_up(self) -> None:
        """Part with those who are members no longer, and with those who do not read what they are answered."""
        while self._evicted:
            line = self._evicted.pop()
            line.finished = True
            self._close(line)
            self._part(line.worker, died=False)
        while self._unresponsive:
            line = self._unresponsive.pop()
            if not line.gone:
                self._program.trouble(line.worker, f"worker {line.worker} does not read what it is answered: cut off")
                self._lost(line)

    # What comes

    def _from_engine(self) -> None:
        try:
            message, _ = self._engine.receive(MESSAGE_S)
        except ChannelClosedError:
            raise SystemExit(0) from None  # the engine is gone, and with it whoever wanted the result
        assert isinstance(message, Stop)
        if self._opening.assembly is not None:
            self._opening.assembly.board.stop()
        self._program.stop(time.monotonic())

    def _from_evaluator(self, descriptor: int) -> None:
        if not self._snapshots.hear(MESSAGE_S):
            self._unwatch(descriptor)
        elif self._program.begun and not self._program.stopping:  # the last one comes unasked
            self._snapshots.serve(self._memory)

    def _from_channel(self, line: Line) -> None:
        try:
            message, _ = line.channel.receive(MESSAGE_S)
        except ChannelClosedError:
            self._unwatch(line.channel.fileno())  # its doorbell tells the rest
            return
        if isinstance(message, protocol.LeaseRequest):
            if readable(line.messages.descriptor, 0.0):  # what it said before it asked
                self._from_doorbell(line)
            if not line.gone:
                self._settle(concluded=False)
                self._program.lease(line.worker, line.incarnation, message, time.monotonic())
            return
        if isinstance(message, protocol.Hello):
            line.hello = message
        else:
            line.ready = True
        self._begin()

    def _from_doorbell(self, line: Line) -> None:
        messages = line.messages.read()
        if messages is None:
            self._lost(line)
            return
        for message in messages:
            self._hear[type(message)](line.worker, line.incarnation, message, time.monotonic())

    def _work_done(self, worker: int, incarnation: int, work: protocol.WorkDone, now_s: float) -> None:
        if self._departures is not None:
            self._departures.report(worker, work)
        self._program.reported(worker, incarnation, work, now_s)

    def _mirror_filled(self, worker: int, incarnation: int, mirror: protocol.MirrorFilled, now_s: float) -> None:
        self._snapshots.mirrored(self._memory, mirror.number)

    def _farewell(self, worker: int, incarnation: int, farewell: protocol.Farewell, now_s: float) -> None:
        self._lines[worker].finished = True
        if self._rendezvous is not None:
            self._memory.last_weights.handed_over(worker)
        self._part(worker, died=False)

    def _checked_out(self, worker: int, incarnation: int, check_out: protocol.CheckOut, now_s: float) -> None:
        place = self._memory.last_weights.place(worker, check_out.version)
        write_answer(self._lines[worker].answer, protocol.CheckedOut(place is not None), place or 0)

    def _checked_in(self, worker: int, incarnation: int, check_in: protocol.CheckIn, now_s: float) -> None:
        assert self._rendezvous is not None, "workers are told to begin before they check in"
        if self._rendezvous.arrived(worker, check_in, now_s):
            self._settle(concluded=True)

    def _lost(self, line: Line) -> None:
        """A worker's pipe is closed, or is to be."""
        if line.gone:
            return
        self._close(line)
        died = not line.finished
        self._program.over(line.worker, died)
        if self._program.begun:
            self._leave(line.worker)
            self._part(line.worker, died)
            self._settle(concluded=False)
        else:
            self._begin()

    def _leave(self, worker: int) -> None:
        if self._departures is not None:
            self._departures.leave(worker, time.monotonic())
        else:
            self._take_leave(worker)

    def _settle(self, concluded: bool) -> None:
        """Take leave of the departed whose folds are known. What they did not fold is leased to others.

        `concluded`: the live workers have concluded the last step that the departed took part in.
        """
        for worker, work, uncertain in self._departures.settled(concluded) if self._departures is not None else ():
            if work.steps:
                self._program.reported(worker, self._lines[worker].incarnation, work, time.monotonic())
            if uncertain:
                what = f"worker {worker} died while it wrote into shared memory"
                self._program.trouble(worker, f"{what}: batches possibly folded twice: {uncertain}")
            self._take_leave(worker)

    def _take_leave(self, worker: int) -> None:
        line = self._lines[worker]
        self._program.left(worker, line.incarnation, not line.finished, time.monotonic())

    def _close(self, line: Line) -> None:
        self._unwatch(line.messages.descriptor)
        self._unwatch(line.channel.fileno())
        line.close()

    def _part(self, worker: int, died: bool) -> None:
        """Where workers fold among themselves, the others are to do so without this one."""
        if self._rendezvous is not None:
            if died:
                self._memory.last_weights.died(worker)
            if self._rendezvous.leave(worker, died, time.monotonic()):
                self._settle(concluded=True)

    # Beginning

    def _begin(self) -> None:
        """Training is one step nearer; when every live worker is ready it begins."""
        self._opening.proceed(self._program.stopping)
        memory = self._opening.assembly
        if memory is None or not self._opening.complete:
            return
        now_s = time.monotonic()
        try:
            self._program.begin(memory, now_s)
        except PlesioError as error:  # the workers wait for their doorbells by now: the engine ends them
            self._program.trouble(None, str(error), str(error), type(error).__name__)
            return
        self._meter.begin(now_s)
        self._tell_engine(Begun())
        if not self._via.at_server:
            self._departures = Departures(memory.board, len(self._lines), self._via.by_collective, now_s)
        if memory.mirrored:
            answers = {line.worker: line.answer for line in self._opening.live()}
            self._rendezvous = Rendezvous(
                answers,
                memory.board,
                lambda worker, message: self._lines[worker].say(message),
                lambda: (self._program.version, self._snapshots.mirrors_made, self._program.stopping),
                self._timeout_s,
                time.monotonic(),
            )
        for line in sorted(self._lines, key=lambda line: not line.gone):  # the data of the gone is for the others
            if line.gone:
                self._program.left(line.worker, line.incarnation, not line.finished, now_s)
            else:
                self._program.joined(line.worker, line.incarnation, now_s)
        self._snapshots.serve(memory)

    # Ending

    def _finish(self) -> None:
        program, memory = self._program, self._program.memory
        self._settle(concluded=True)
        program.end(time.monotonic())
        buffer = 0
        if memory is not None:
            self._snapshots.send(memory, final=True)
            buffer = memory.final_buffer(FINAL)
        lost = self._lost_weights(memory)
        program.close(time.monotonic(), buffer)
        figures = program.figures(time.monotonic(), memory, buffer, lost)
        self._tell_engine(figures, (memory.ring_descriptor,) if memory is not None else ())

    def _lost_weights(self, memory: Assembly | None) -> str:
        """Where workers fold among themselves, the weights end with the last of them."""
        version = self._program.version
        whole = memory.last_weights.whole if memory is not None else None
        handed_over = whole.version if whole is not None else 0
        if memory is None or not memory.mirrored or handed_over >= version:
            return ""
        died = f"the workers that held version {version} ended before they could hand it over"
        if not handed_over:
            return f"{died}, and with them the weights; steps longer than the time to stop have the same effect"
        self._program.trouble(None, f"{died}: the weights are those of version {handed_over}")
        return ""

    def _tell(self, message: Trouble | Writing) -> None:
        """Tell the engine; what happened is put on record, too."""
        if isinstance(message, Trouble):
            self._recorder.note(message.incident.what, time.monotonic(), message.incident.worker)
        self._tell_engine(message)

    def _journal_ends(self, error: JournalError) -> None:
        self._program.trouble(None, f"{error}; the journal ends here, and later versions cannot be replayed")

    def _tell_engine(self, message: object, descriptors: tuple[int, ...] = ()) -> None:
        """While it is stopped (Ctrl-Z) training goes on: it is told later, and of progress not at all."""
        try:
            if isinstance(message, Final):
                self._engine.send(message, descriptors)
            elif self._engine.has_room or not isinstance(message, Progress):
                self._engine.send_in_time(message)
        except ChannelClosedError:
            raise SystemExit(0) from None


def main(job: Job, descriptors: list[int]) -> None:
    """Entry of the server process. `descriptors`: engine, evaluator, journal, then channel, push, answer of each worker."""
    import torch

    torch.set_num_threads(job.threads)
    rest = iter(descriptors)
    engine: Channel[Stop] = Channel.attach(next(rest), Stop, "the engine")
    evaluator: Channel[SnapshotRequest] | None = None
    if job.evaluate is not None:
        evaluator = Channel.attach(next(rest), SnapshotRequest, "the evaluator")
    writer = JournalWriter.begun(next(rest), job.keeping.journal) if job.keeping.journal else None
    lines = [Line.open(worker, job.incarnation, rest) for worker in range(job.config.workers)]
    Server(job, engine, evaluator, lines, writer).run()
