"""The server process: takes what comes from workers to the sequencer, and does what the sequencer says.

It has no other thread: a doorbell would cost the interpreter's switch interval. One loop polls every worker's pipe and
channel, the evaluator and the engine; whatever peer dies is noticed as the end of its file.
"""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Callable
from functools import partial

import msgspec

from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Effect,
    Event,
    Evict,
    Fold,
    Grant,
    Hold,
    Joined,
    Leased,
    LeaseWanted,
    Left,
    Pushed,
    Reported,
    Ticked,
    Verdict,
)
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.engine.assembly import Assembly
from plesio.engine.closing import final_figures
from plesio.engine.keeping import Keeper, Keeping
from plesio.engine.lines import Line
from plesio.engine.messages import (
    Begun,
    Hello,
    LeaseReply,
    LeaseRequest,
    Progress,
    Refused,
    SnapshotRequest,
    Stop,
    ToServerFromEngine,
    ToServerFromEvaluator,
    Trouble,
)
from plesio.engine.muster import Muster
from plesio.engine.opening import Opening
from plesio.engine.recording import Recorder
from plesio.engine.snapshots import Snapshots
from plesio.errors import CheckpointError, PlesioError
from plesio.fabric.channel import Channel, ChannelClosedError, from_descriptor, readable
from plesio.fabric.doorbell import Header, Lookout, Note, Report, write_answer
from plesio.journal import JournalError, JournalWriter
from plesio.observe.meter import Meter
from plesio.observe.summary import Incident
from plesio.rules import Server as ViaServer
from plesio.strategy import Strategy

TICK_S = 0.1
MESSAGE_S = 10.0
FINAL = -2
"""The reader of the ring for the engine, at the end."""


class ServerConfig(msgspec.Struct, frozen=True):
    """What a server process is told when it starts."""

    workers: int
    evaluates: bool
    journals: bool
    stealing: bool
    timeout_s: float
    raise_on_nonfinite: bool
    threads: int
    incarnation: int
    keeping: Keeping


class Server:
    """One run's server.

    Args:
        config: its settings.
        strategy: how tightly workers keep step.
        engine: the channel to the engine.
        evaluator: the channel to the evaluator, if there is one.
        lines: one for each worker.
        writer: of the journal, if one is kept.
    """

    def __init__(
        self,
        config: ServerConfig,
        strategy: Strategy,
        engine: Channel[Stop],
        evaluator: Channel[SnapshotRequest] | None,
        lines: list[Line],
        writer: JournalWriter | None = None,
    ) -> None:
        self._config = config
        self._strategy = strategy
        self._engine = engine
        self._snapshots = Snapshots(evaluator, self._standing)
        self._lines = lines
        self._leases = DataLeases(config.workers, config.stealing)
        self._sequencer = Sequencer(strategy, config.workers, self._leases, config.timeout_s)
        self._meter = Meter(config.workers)
        self._opening = Opening(strategy, config.workers, config.evaluates, lines)
        self._begun = False
        self._samples_before = 0  # the run was resumed
        self._stopping = False
        self._stopped_s: float | None = None
        self._handed_over = 0  # where workers fold among themselves: the version the last to finish left
        self._muster: Muster | None = None
        self._arrived_s = 0.0
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._next_tick_s = 0.0
        self._started_s = time.monotonic()
        self._via_server = isinstance(strategy.via, ViaServer)
        self._keeper = Keeper(config.keeping, strategy, config.workers)
        self._recorder = Recorder(writer if self._via_server else None, lambda: self._built, self._journal_ends)

    # The loop

    def run(self) -> None:
        """Serve until every worker is gone, then tell the engine what it cost."""
        self._watch(self._engine.fileno(), self._from_engine)
        if self._snapshots.evaluator is not None:
            descriptor = self._snapshots.evaluator.fileno()
            self._watch(descriptor, partial(self._from_evaluator, descriptor))
        for line in self._lines:
            self._watch(line.headers.descriptor, partial(self._from_doorbell, line))
            self._watch(line.channel.fileno(), partial(self._from_channel, line))
        gc.freeze()  # what was there before the fork is never garbage: do not look through it
        lookout = Lookout(self._poller)
        while not all(line.gone for line in self._lines):
            for descriptor, _ in lookout.wait(TICK_S):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
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
        if not self._begun and now_s - self._started_s > self._config.timeout_s:
            self._begin_is_late()
        if self._begun:
            self._receive(Ticked(), now_s)
            self._tell_engine(
                Progress(now_s - self._meter.zero_s, self._sequencer.version, self._meter.steps, self._meter.samples)
            )
        self._recorder.flush()
        if self._begun and self._keeper.due(now_s):
            self._keep(now_s)
        if self._muster is not None:
            for worker, silent_s in self._muster.tick(now_s):
                self._evict(Evict(worker, self._lines[worker].incarnation, silent_s))

    def _keep(self, now_s: float) -> None:
        """Write a checkpoint; training goes on if that fails."""
        self._recorder.flush(durable=True)
        try:
            self._keeper.write(self._sequencer, self._built, self._recorder.position, now_s)
        except CheckpointError as error:
            self._trouble(None, str(error))

    def _journal_ends(self, error: JournalError) -> None:
        self._trouble(None, f"{error}; the journal ends here, and later versions cannot be replayed")

    # What comes

    def _from_engine(self) -> None:
        try:
            message, _ = self._engine.receive(MESSAGE_S)
        except ChannelClosedError:
            raise SystemExit(0) from None  # the engine is gone, and with it whoever wanted the result
        assert isinstance(message, Stop)
        self._stopping = True
        self._stopped_s = time.monotonic()
        if self._opening.assembly is not None:
            self._opening.assembly.board.stop()
        if self._begun and self._keeper.writes:
            self._keep(self._stopped_s)

    def _from_evaluator(self, descriptor: int) -> None:
        if not self._snapshots.hear(MESSAGE_S):
            self._unwatch(descriptor)
        elif self._begun and not self._stopping:  # the last one comes unasked
            self._snapshots.serve(self._built)

    def _from_channel(self, line: Line) -> None:
        try:
            message, _ = line.channel.receive(MESSAGE_S)
        except ChannelClosedError:
            self._unwatch(line.channel.fileno())  # its doorbell tells the rest
            return
        if isinstance(message, LeaseRequest):
            if readable(line.headers.descriptor, 0.0):  # what it said before it asked
                self._from_doorbell(line)
            if not line.gone:
                self._lease(line, message)
        elif isinstance(message, Hello):
            line.hello = message
            self._opening.assemble(self._stopping)
        else:
            line.ready = True
            self._begin()

    def _from_doorbell(self, line: Line) -> None:
        headers = line.headers.read()
        if headers is None:
            self._lost(line)
            return
        for header in headers:
            self._arrived_s = time.monotonic()
            if header.note == Note.PUSH:
                self._pushed(line, header)
            elif header.note == Note.ABANDON:
                if header.extra:
                    self._meter.dropped(line.worker, header.extra.decode())
                self._receive(Abandoned(line.worker, line.incarnation, header.batches), self._arrived_s)
            elif header.note == Note.REPORT:
                self._reported(line, header)
            elif header.note == Note.MIRRORED:
                self._snapshots.mirrored(self._built, header.number)
            elif header.note == Note.FINISH:
                line.finished = True
                self._handed_over = max(self._handed_over, header.number)
                self._part(line.worker, died=False)
            else:
                assert self._muster is not None, "workers are told to begin before they check in"
                self._muster.arrived(line.worker, header, self._arrived_s)

    def _pushed(self, line: Line, header: Header) -> None:
        meter = self._meter.workers[line.worker]
        meter.pushed(header.ready_s, header.steps, header.samples, header.number)
        self._keeper.came(line.worker, header.number, header.steps, header.samples)
        if header.extra:
            self._built.folder.set_groups(line.worker, msgspec.msgpack.decode(header.extra))
        self._recorder.loss = header.loss
        self._receive(
            Pushed(
                line.worker,
                line.incarnation,
                header.number,
                header.steps,
                header.samples,
                header.batches,
                bool(header.finite),
            ),
            self._arrived_s,
        )
        meter.held_since_s = time.monotonic()
        self._meter.missing_gradients += header.missing
        self._meter.exchanges += 1
        if not header.finite:
            self._not_finite(line, f"contribution {header.number}")

    def _not_finite(self, line: Line, which: str) -> None:
        what = f"{which} of worker {line.worker} held a NaN or an infinity"
        fatal = f"{what}, and on_nonfinite='raise'" if self._config.raise_on_nonfinite else ""
        self._trouble(line.worker, f"{what}: discarded", fatal, "NonFiniteError")

    def _reported(self, line: Line, header: Header) -> None:
        report = msgspec.msgpack.decode(header.extra, type=Report)
        meter = self._meter.workers[line.worker]
        meter.reported(header.ready_s, header.steps, header.samples, report.wait_s, report.exchange_s)
        meter.folded += sum(report.staleness.values())
        meter.staleness.update(report.staleness)
        self._meter.missing_gradients += header.missing
        self._meter.exchanges += header.steps
        if not header.finite:
            self._meter.dropped(line.worker, Verdict.NOT_FINITE.words)
            self._not_finite(line, f"step {meter.steps}")
        self._receive(Reported(line.worker, line.incarnation, header.number, header.batches), self._arrived_s)

    def _lease(self, line: Line, request: LeaseRequest) -> None:
        if self._stopping:
            line.say(LeaseReply((), stop=True))
            return
        why = self._leases.disagreement(line.worker, request.epoch, request.total, request.digest)
        if why:
            line.say(Refused("ConfigurationError", why))
            return
        wanted = LeaseWanted(line.worker, line.incarnation, request.epoch, request.total, request.most, request.unused)
        self._receive(wanted, time.monotonic())

    def _lost(self, line: Line) -> None:
        """A worker's pipe is closed: it finished, or it died."""
        if line.gone:
            return
        self._unwatch(line.headers.descriptor)
        self._unwatch(line.channel.fileno())
        line.close()
        now_s = time.monotonic()
        self._meter.workers[line.worker].left = "finished" if line.finished else "died"
        if not line.finished and not self._stopping:
            self._trouble(line.worker, f"worker {line.worker} died; the others go on, its data goes to them")
        if self._begun:
            self._built.forget(line.worker)
            self._arrived_s = now_s
            self._receive(Left(line.worker, line.incarnation, not line.finished), now_s)
            self._part(line.worker, died=not line.finished)
        else:
            self._opening.assemble(self._stopping)
            self._begin()

    def _part(self, worker: int, died: bool) -> None:
        """Where workers fold among themselves, the others are to do so without this one."""
        if self._muster is not None:
            self._muster.leave(worker, died, time.monotonic())

    # Beginning

    @property
    def _built(self) -> Assembly:
        assert self._opening.assembly is not None, "nobody contributes before the model is there"
        return self._opening.assembly

    def _begin_is_late(self) -> None:
        """Training did not begin in time: say for whom everybody waits."""
        why = f"{self._opening.lacking()} did not get as far as prepare within {self._config.timeout_s:g} s"
        self._trouble(None, why, f"training did not begin: {why}; the others waited", "DeadlineError")

    def _begin(self) -> None:
        """Training begins, when every live worker is ready."""
        if self._begun or not self._opening.complete:
            return
        try:
            self._build(self._built)
        except PlesioError as error:  # the workers wait for their doorbells by now: the engine ends them
            self._trouble(None, str(error), str(error), type(error).__name__)
            return
        self._begun = True
        live = self._opening.live()
        now_s = time.monotonic()
        self._meter.begin(now_s)
        self._tell_engine(Begun(now_s))
        if self._built.mirrored:
            answers = {line.worker: line.answer for line in live}
            self._muster = Muster(
                answers, self._built.board, self._say_to, self._progress, self._config.timeout_s, now_s
            )
        for line in self._lines:
            if line.gone:  # the data that was to be its own is for the others
                self._receive(Left(line.worker, line.incarnation, not line.finished), now_s)
        for line in live:
            self._receive(Joined(line.worker, line.incarnation), now_s)
        self._snapshots.serve(self._built)

    def _build(self, built: Assembly) -> None:
        """Get ready to fold, from the first worker's weights or from a checkpoint."""
        sequencer = self._keeper.build(built, self._config.stealing, self._config.timeout_s)
        for line in self._lines:
            if line.gone:
                built.forget(line.worker)
        if sequencer is None:
            return
        self._sequencer, self._leases = sequencer, sequencer.leases
        self._samples_before = self._keeper.taken.samples
        self._recorder.resumed(sequencer.version, time.monotonic())

    # Doing what the sequencer says

    def _receive(self, event: Event, now_s: float) -> None:
        self._recorder.told(event, now_s)
        effects = self._sequencer.receive(event, now_s)
        for effect in effects:
            self._do(effect)
        for effect in effects:  # those who may go on need not wait for the checksum
            self._recorder.done(effect, now_s)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Grant):
            self._grant(effect)
        elif isinstance(effect, Fold):
            for member in effect.members:
                self._meter.folded(member.worker, member.staleness)
            self._built.folder.fold(effect)
        elif isinstance(effect, Hold):
            self._built.folder.hold(effect.worker, effect.weight)
        elif isinstance(effect, Discard) and effect.verdict not in (Verdict.DUPLICATE, Verdict.FENCED):
            self._meter.dropped(effect.worker, effect.verdict.words)
        elif isinstance(effect, Cancel):
            self._keeper.answered(effect.worker, effect.number)
            self._answer(effect.worker, effect.number, effect.version, cancel=True)
            self._meter.workers[effect.worker].cancelled(time.monotonic(), effect.number)
        elif isinstance(effect, Leased):
            self._lines[effect.worker].say(LeaseReply(effect.batches, stop=False))
        elif isinstance(effect, Evict):
            self._evict(effect)

    def _grant(self, grant: Grant) -> None:
        if grant.number:
            meter = self._meter.workers[grant.worker]
            self._keeper.answered(grant.worker, grant.number)
            self._answer(grant.worker, grant.number, grant.version, int(grant.verdict), grant.staleness)
            meter.granted(time.monotonic(), self._arrived_s if grant.freed_by_other else None)
        else:
            before = self._keeper.before[grant.worker]
            self._answer(grant.worker, before.contributions, grant.version, staleness=before.steps)

    def _answer(
        self, worker: int, number: int, version: int, verdict: int = 0, staleness: int = 0, cancel: bool = False
    ) -> None:
        line = self._lines[worker]
        if line.gone:
            return
        buffer = self._built.folder.publish(worker) if self._via_server else 0
        write_answer(line.answer, cancel, verdict, self._stopping, buffer, staleness, number, version)

    def _evict(self, evict: Evict) -> None:
        line = self._lines[evict.worker]
        others = "while others waited for it" if self._sequencer.members.seats else "and all the others had ended"
        self._trouble(evict.worker, f"worker {evict.worker} was silent for {evict.silent_s:.0f} s {others}: evicted")
        line.finished = True
        self._lost(line)
        self._meter.workers[evict.worker].left = "evicted"

    def _standing(self) -> tuple[float, int, int]:
        now_s = self._stopped_s or time.monotonic()
        return now_s - self._meter.zero_s, self._sequencer.version, self._samples_before + self._meter.samples

    def _progress(self) -> tuple[int, int, bool]:
        return self._sequencer.version, self._snapshots.mirrors_made, self._stopping

    # Ending

    def _finish(self) -> None:
        ended_s = self._stopped_s or time.monotonic()  # the last steps of slow workers are not held against the fast
        wall_s = max(0.0, ended_s - self._meter.zero_s) if self._begun else 0.0
        built = self._built if self._begun else None
        if built is not None:
            self._snapshots.send(built, final=True)
        buffer = built.final_buffer(FINAL) if built else 0
        if built is not None and self._keeper.writes and not self._stopping:  # else it was kept when it was stopped
            self._keep(ended_s)
        if built is not None:
            self._recorder.end(self._sequencer.version, time.monotonic())
        message = final_figures(wall_s, self._sequencer, self._meter, built, buffer, self._lost_weights(built))
        self._tell_engine(message, (built.ring_descriptor,) if built else ())

    def _lost_weights(self, built: Assembly | None) -> str:
        """Where workers fold among themselves, the weights end with the last of them."""
        version = self._sequencer.version
        if built is None or not built.mirrored or self._handed_over >= version:
            return ""
        died = f"the workers that held version {version} ended before they could hand it over"
        if not self._handed_over:
            return f"{died}, and with them the weights; steps longer than the time to stop have the same effect"
        self._trouble(None, f"{died}: the weights are those of version {self._handed_over}")
        return ""

    # Talking

    def _say_to(self, worker: int, message: object) -> None:
        self._lines[worker].say(message)

    def _trouble(self, worker: int | None, what: str, fatal: str = "", kind: str = "") -> None:
        time_s = time.monotonic() - self._meter.zero_s if self._begun else 0.0
        self._recorder.note(what, time.monotonic(), worker)
        self._tell_engine(Trouble(Incident(time_s, worker, what), fatal, kind))

    def _tell_engine(self, message: object, descriptors: tuple[int, ...] = ()) -> None:
        try:
            self._engine.send(message, descriptors)
        except ChannelClosedError:
            raise SystemExit(0) from None


def main(arguments: bytes, descriptors: list[int], objects: dict[str, object]) -> None:
    """Entry of the server process. `descriptors`: engine, evaluator, journal, then channel, push, answer of each worker."""
    import torch

    config = msgspec.msgpack.decode(arguments, type=ServerConfig)
    torch.set_num_threads(config.threads)
    strategy = objects["strategy"]
    assert isinstance(strategy, Strategy)
    rest = iter(descriptors)
    engine: Channel[Stop] = Channel(from_descriptor(next(rest)), ToServerFromEngine, "the engine")
    evaluator: Channel[SnapshotRequest] | None = None
    if config.evaluates:
        evaluator = Channel(from_descriptor(next(rest)), ToServerFromEvaluator, "the evaluator")
    writer = JournalWriter.begun(next(rest)) if config.journals else None
    lines = [Line.open(worker, config.incarnation, rest) for worker in range(config.workers)]
    Server(config, strategy, engine, evaluator, lines, writer).run()
