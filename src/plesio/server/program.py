"""Deciding: what workers say goes to the sequencer, what it says is done, and both are counted and kept.

    note -> event -> sequencer -> effect -> folder (tensors), lines (answers)
                                         -> meter (figures), keeper (checkpoints), recorder (the journal)

Who said it, and by which way it came, is the business of `plesio.launch.local.server_process`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

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
from plesio.errors import CheckpointError, PlesioError
from plesio.observe.meter import Meter
from plesio.observe.summary import Incident
from plesio.protocol.journal import JournalError, JournalWriter
from plesio.protocol.launcher import Begun, Final, Progress, Trouble, Writing
from plesio.protocol.worker import Contribution, DroppedStep, LeaseReply, LeaseRequest, Refused, WorkDone
from plesio.server.answers import answer_to
from plesio.server.assembly import Assembly
from plesio.server.checkpointer import Keeper
from plesio.server.closing import final_figures
from plesio.server.configs import ServerConfig
from plesio.server.lines import Line
from plesio.server.not_finite import NotFinite
from plesio.server.recording import Recorder
from plesio.strategy import Strategy
from plesio.transport.doorbell import write_answer

WHOLE_ROUND_S = 1.0
"""How long after a stop data still comes for the round under way: less than whoever does not end then is waited for."""


class Deciding:
    """One run's decisions, and what comes of them.

    Args:
        config: the server's settings.
        strategy: how tightly workers keep step.
        lines: one for each worker.
        writer: of the journal, if one is kept.
        built: gives the run's memory, once there is some.
        tell: sends a message to the engine.
        lost: called with the line of a worker that is a member no longer, which it may not know.
    """

    def __init__(
        self,
        config: ServerConfig,
        strategy: Strategy,
        lines: list[Line],
        writer: JournalWriter | None,
        built: Callable[[], Assembly],
        tell: Callable[[object], None],
        lost: Callable[[Line], None],
    ) -> None:
        self._config = config
        self._lines = lines
        self._built = built
        self._tell = tell
        self._lost = lost
        self._via_server = strategy.via.at_server
        self._in_rounds = strategy.gather.in_rounds
        leases = DataLeases(config.workers, config.stealing)
        self._sequencer = Sequencer(strategy, config.workers, leases, config.timeout_s)
        self._meter = Meter(config.workers)
        self._keeper = Keeper(config.keeping, strategy, config.workers)
        self._recorder = Recorder(writer if self._via_server else None, built, self._journal_ends)
        self._spoiled = NotFinite()
        self._deaf: list[Line] = []  # workers there was no room to answer, to be cut off when all is done
        self._samples_before = 0  # the run was resumed
        self._arrived_s = 0.0  # when what is dealt with now came
        self._made_s = 0.0  # when the version that is current was made
        self._ended_s: float | None = None  # the last steps of slow workers are not held against the fast
        self.begun = False
        self.stopping = False
        """Workers are told to stop, each with its next answer."""

    # Of the run as a whole

    def begin(self) -> bool:
        """Training begins: from the first worker's weights or from a checkpoint. False if it cannot, which is told."""
        try:
            self._build()
        except PlesioError as error:  # the workers wait for their doorbells by now: the engine ends them
            self.trouble(None, str(error), str(error), type(error).__name__)
            return False
        self.begun = True
        now_s = time.monotonic()
        self._meter.begin(now_s)
        self._tell(Begun())
        return True

    def _build(self) -> None:
        built = self._built()
        sequencer = self._keeper.build(built, self._config.stealing, self._config.timeout_s)
        for line in self._lines:
            if line.gone:
                built.forget(line.worker)
        if sequencer is None:
            return
        self._sequencer = sequencer
        self._samples_before = self._keeper.taken.samples
        self._recorder.resumed(sequencer.version, time.monotonic())

    def seat(self) -> None:
        """Tell the sequencer who is here; the data that was to be another's is for these."""
        now_s = time.monotonic()
        for line in self._lines:
            if line.gone:
                self._receive(Left(line.worker, line.incarnation, not line.finished), now_s)
        for line in self._lines:
            if not line.gone:
                self._receive(Joined(line.worker, line.incarnation), now_s)

    def tick(self, now_s: float) -> None:
        """Time went by."""
        if self.begun:
            self._receive(Ticked(), now_s)
            done = self._meter.steps, self._meter.samples
            self._tell(Progress(now_s - self._meter.zero_s, self._sequencer.version, *done))
        self._recorder.flush()
        if self.begun and not self.stopping and self._keeper.due(now_s):  # who hears of the stop leaves a fold early
            self._keep(now_s)

    def stop(self) -> None:
        """The engine wants no more."""
        self.stopping = True
        self._ended_s = time.monotonic()
        if self.begun and self._keeper.writes:
            self._keep(self._ended_s)

    def end(self) -> None:
        """No worker is left: the clock stops, if nobody stopped it."""
        self._ended_s = self._ended_s or time.monotonic()

    def close(self, buffer: int, lost: str) -> Final:
        """Keep what is to be kept; all the run cost. `buffer` holds the weights unless they are `lost`."""
        if not self.begun:
            return final_figures(0.0, self._sequencer, self._meter)
        if self._keeper.writes and not self.stopping:  # else it was kept when it was stopped
            self._keep(time.monotonic())
        self._recorder.end(self.version, time.monotonic())
        wall_s = (self._ended_s or time.monotonic()) - self._meter.zero_s
        return final_figures(max(0.0, wall_s), self._sequencer, self._meter, self._built(), buffer, lost)

    @property
    def version(self) -> int:
        """The version that is current."""
        return self._sequencer.version

    def standing(self) -> tuple[float, int, int]:
        """The time in seconds since training began, the version, and the samples so far.

        After the stop time stands still, but for a version that is made from steps that were under way then.
        """
        now_s = max(self._ended_s or time.monotonic(), self._made_s)
        return now_s - self._meter.zero_s, self.version, self._samples_before + self._meter.samples

    def trouble(self, worker: int | None, what: str, fatal: str = "", kind: str = "") -> None:
        """Put on record, and tell the engine, what happened (to `worker`); `fatal`: and why that ends the run."""
        now_s = time.monotonic()
        self._recorder.note(what, now_s, worker)
        time_s = now_s - self._meter.zero_s if self.begun else 0.0
        self._tell(Trouble(Incident(time_s, worker, what), fatal, kind))

    def _keep(self, now_s: float) -> None:
        """Write a checkpoint, in which time nobody is heard; training goes on if that fails."""
        self._tell(Writing(True))
        self._recorder.flush(durable=True)
        try:
            self._keeper.write(self._sequencer, self._built(), self._recorder.position, now_s)
        except CheckpointError as error:
            self.trouble(None, str(error))
        self._tell(Writing(False))

    def _journal_ends(self, error: JournalError) -> None:
        self.trouble(None, f"{error}; the journal ends here, and later versions cannot be replayed")

    # What a worker says

    def pushed(self, line: Line, made: Contribution) -> None:
        """A contribution lies in its slot."""
        self._arrived_s = time.monotonic()
        meter = self._meter.workers[line.worker]
        meter.pushed(meter.granted_s + made.worked_s, made.steps, made.samples, made.number)
        self._keeper.came(line.worker, made.number, made.steps, made.samples)
        for settings in made.settings:
            self._built().folder.set_groups(line.worker, msgspec.msgpack.decode(settings.groups))
        self._recorder.loss = made.loss
        event = Pushed(line.worker, line.incarnation, made.number, made.steps, made.samples, made.batches, made.finite)
        self._receive(event, self._arrived_s)
        meter.held_since_s = time.monotonic()
        self._meter.missing_gradients += made.missing
        self._meter.exchanges += 1
        if not made.finite:
            self._not_finite(line, f"contribution {made.number}")

    def abandoned(self, line: Line, step: DroppedStep) -> None:
        """A step was dropped."""
        self._arrived_s = time.monotonic()
        if step.reason:
            self._meter.dropped(line.worker, step.reason)
        self._meter.workers[line.worker].heard(step.worked_s)
        self._receive(Abandoned(line.worker, line.incarnation, step.batches, step.look), self._arrived_s)

    def reported(self, line: Line, work: WorkDone) -> None:
        """Work was folded elsewhere."""
        self._arrived_s = time.monotonic()
        meter = self._meter.workers[line.worker]
        meter.reported(meter.granted_s + work.lasted_s, work.steps, work.samples, work.wait_s, work.exchange_s)
        meter.folded += sum(work.staleness.values())
        meter.staleness.update(work.staleness)
        self._meter.missing_gradients += work.missing
        self._meter.exchanges += work.steps
        self._meter.answers += work.steps
        if not work.finite:
            self._meter.dropped(line.worker, Verdict.NOT_FINITE.words)
            self._not_finite(line, f"step {meter.steps}")
        self._receive(Reported(line.worker, line.incarnation, work.versions, work.batches), self._arrived_s)

    def _not_finite(self, line: Line, which: str) -> None:
        what = f"{which} of worker {line.worker} held a NaN or an infinity"
        fatal = f"{what}, and on_nonfinite='raise'" if self._config.raise_on_nonfinite else ""
        before = self._spoiled.count(line.worker)
        if fatal or before is not None:
            self.trouble(line.worker, f"{what}: discarded{before or ''}", fatal, "NonFiniteError")

    def lease(self, line: Line, request: LeaseRequest) -> None:
        """It wants data. When the run is stopped it gets none; where rounds are made of all, a batch at a time for a moment
        more: without it the others would be a smaller round."""
        most = request.most
        if self._ended_s is not None:
            if not self._in_rounds or time.monotonic() - self._ended_s > WHOLE_ROUND_S:
                line.say(LeaseReply(stop=True))
                return
            most = min(most, 1)
        why = self._sequencer.leases.disagreement(line.worker, request.epoch, request.total, request.digest)
        if why:
            line.say(Refused("ConfigurationError", why))
            return
        wanted = LeaseWanted(line.worker, line.incarnation, request.epoch, request.total, most, request.unused)
        self._receive(wanted, time.monotonic())

    def left(self, line: Line) -> None:
        """It says nothing any more: it finished, or it died."""
        self._meter.workers[line.worker].left = "finished" if line.finished else "died"
        if not line.finished and not self.stopping:
            self.trouble(line.worker, f"worker {line.worker} died; the others go on, its data goes to them")
        if self.begun:
            self._arrived_s = time.monotonic()
            self._built().forget(line.worker)
            self._receive(Left(line.worker, line.incarnation, not line.finished), self._arrived_s)

    # What the sequencer says

    def _receive(self, event: Event, now_s: float) -> None:
        self._recorder.told(event, now_s)
        before = self.version
        effects = self._sequencer.receive(event, now_s)
        if self.version != before:
            self._made_s = now_s
        for effect in effects:
            self._do(effect)
        for effect in effects:  # those who may go on need not wait for the checksum
            self._recorder.done(effect, now_s)
        while self._deaf:
            self._cut_off(self._deaf.pop())

    def _cut_off(self, line: Line) -> None:
        if not line.gone:
            self.trouble(line.worker, f"worker {line.worker} does not read what it is answered: cut off")
            self._lost(line)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Grant):
            self._answer(effect)
            if effect.number:
                self._keeper.answered(effect.worker, effect.number)
                released_s = self._arrived_s if effect.freed_by_other else None
                self._meter.workers[effect.worker].granted(time.monotonic(), released_s)
        elif isinstance(effect, Fold):
            for member in effect.members:
                self._meter.folded(member.worker, member.staleness)
            self._built().folder.fold(effect)
        elif isinstance(effect, Hold):
            self._built().folder.hold(effect.worker, effect.weight)
        elif isinstance(effect, Discard) and effect.verdict not in (Verdict.DUPLICATE, Verdict.FENCED):
            self._meter.dropped(effect.worker, effect.verdict.words)
        elif isinstance(effect, Cancel):
            self._answer(effect)
            self._keeper.answered(effect.worker, effect.number)
            self._meter.workers[effect.worker].cancelled(time.monotonic(), effect.number)
        elif isinstance(effect, Leased):
            self._lines[effect.worker].say(LeaseReply(effect.batches, epoch=effect.epoch))
        elif isinstance(effect, Evict):
            self.evict(effect)

    def _answer(self, effect: Grant | Cancel) -> None:
        worker, unasked = effect.worker, isinstance(effect, Cancel)
        line = self._lines[worker]
        if line.gone:
            return
        buffer = self._built().folder.publish(worker, unasked) if self._via_server else 0
        self._meter.answers += effect.number > 0  # the first version everybody has
        try:
            write_answer(line.answer, *answer_to(effect, buffer, self._keeper.before[worker], self.stopping))
        except BlockingIOError:
            self._deaf.append(line)

    def evict(self, evict: Evict) -> None:
        """A worker was silent for too long: it is a member no longer."""
        line = self._lines[evict.worker]
        others = "while others waited for it" if self._sequencer.members.seats else "and all the others had ended"
        self.trouble(evict.worker, f"worker {evict.worker} was silent for {evict.silent_s:.0f} s {others}: evicted")
        line.finished = True
        self._lost(line)
        self._meter.workers[evict.worker].left = "evicted"
