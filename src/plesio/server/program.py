"""The server's program, one state machine: it is told what happens and when, has it decided, and carries that out.

    message -> event -> sequencer -> effect -> memory (folding), replies (answers), checkpointer
                                  then, of all together: meter (figures), recorder (the journal)

One object under every clock. It reads no clock, knows no pipe and no tensor: drivers bring the events and the time, and carry the
answers (`plesio.launch`: local, simulated, replayed; and the fault simulation).

| effect        | memory    | replies                      | figures                           | journal  |
| ------------- | --------- | ---------------------------- | --------------------------------- | -------- |
| Hold, Forget, | does them | -                            | -                                 | -        |
| Share, Show   |           |                              |                                   |          |
| Fold          | does it   | -                            | staleness of each member          | fold     |
| Discard       | -         | DUPLICATE, FENCED: repeated  | the others: counted, by reason    | discard  |
| Grant         | its place | granted                      | exchange and wait; progress       | -        |
| Cancel        | its place | called_off                   | time in vain; progress            | -        |
| Leased        | -         | supplied                     | -                                 | -        |
| WakeAt        | -         | wake_at                      | -                                 | -        |
| Evict         | -         | evicted                      | how it left; an incident          | eviction |
| others        | what `plesio.server.capabilities` have of them: this program knows none                     |
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import nan
from typing import Any

from msgspec.structs import asdict, replace

from plesio.attachments.counters import Counters
from plesio.capabilities import those_with
from plesio.core import events
from plesio.core.events import Event, Verdict
from plesio.core.sequencer import Sequencer, SequencerState
from plesio.errors import CheckpointError, ConfigurationError
from plesio.memory.port import Memory
from plesio.observe.meter import Meter
from plesio.observe.summary import TOLD, Incident
from plesio.protocol.coding import cut
from plesio.protocol.journal import JournalWriter
from plesio.protocol.launcher import StopRequest, Trouble, Writing
from plesio.protocol.worker import (
    Answer,
    Attached,
    Beginning,
    Contribution,
    DroppedStep,
    GoOn,
    LeaseReply,
    LeaseRequest,
)
from plesio.server.agreement import Agreement
from plesio.server.capabilities import capabilities_of
from plesio.server.capability import Capability, Supplies
from plesio.server.checkpoint_timing import CheckpointTiming
from plesio.server.checkpointer import Checkpointer, Taken
from plesio.server.checkpoints import WorkerProgress
from plesio.server.interfaces import Replies
from plesio.server.keeping import Keeping
from plesio.server.non_finite import NonFinite
from plesio.server.paces import Paces
from plesio.server.recording import Recorder
from plesio.strategy import Strategy
from plesio.transport.doorbell import Located

WHOLE_ROUND_S = 1.0
"""Seconds after a stop in which the round under way still gets data. Below the time that workers have to end."""
NO_ANSWER = Located(GoOn(0, False, Verdict.TAKEN), 0)
"""To who asks for something else than to go on."""
BEGUN_ANEW = "the workers have begun anew"


class Program:
    """One run's server.

    Args:
        checkpointer: None where nobody asks for checkpoints, nor for what each worker contributed.
        tell: told of what a user will want to know.
        memory: what there is until one is handed over (`begin`).
        raise_on_nonfinite: a NaN or an infinity ends the run.
        by_round: somebody looks at each version before the next round begins.
    """

    def __init__(
        self,
        strategy: Strategy,
        sequencer: Sequencer,
        replies: Replies,
        meter: Meter,
        *,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        tell: Callable[[Trouble | Writing | StopRequest], None],
        memory: Memory | None = None,
        raise_on_nonfinite: bool = False,
        by_round: bool = False,
    ) -> None:
        self.sequencer = sequencer
        self.memory = memory or Memory()
        self.begun = False
        """Whether there is a model."""
        self.stopping = False
        """Workers are told to stop, each with its next answer."""
        self.listening = [False] * len(meter.workers)
        """Which workers answers reach."""
        self.replies = replies
        self._meter = meter
        self._uncounted: list[Callable[[], object]] = []  # of the event that is dealt with
        self.recorder = recorder or Recorder()
        self._answers = checkpointer is not None
        self.checkpointer = checkpointer or Checkpointer(Keeping(), strategy, sequencer.workers, len(meter.workers))
        self.tell = tell
        self._seen: set[int] = set()  # workers that have joined
        self._agreement = Agreement(strategy, self.trouble)
        self.ended_s: float | None = None  # the last steps of slow workers are not held against the fast
        self.non_finite = NonFinite(self.trouble, raise_on_nonfinite)
        self.before = Taken()
        """What was done before the run was resumed."""
        self.now_s = 0.0  # when what is dealt with now came
        self.made_s = 0.0
        """When the version that is current was made."""
        self.began_at = 0
        """The version that training begins with, or goes on from."""
        self._timing = CheckpointTiming(self.checkpointer.every_s, sequencer.members.silence_s)
        self._writing = False  # as the launcher was told
        self._joining: dict[int, int] = {}  # which process of a worker is to be a member
        self.by_round = by_round
        self._inherits = strategy.begins_anew  # a worker's successor goes on with what it held
        self._told_choices: dict[int, int] = {}  # by worker: how many of them
        self.take_strategy()
        able = self._able = capabilities_of(self)
        self._came, self._folded = those_with(able, Capability.came), those_with(able, Capability.folded)
        self._discarded = those_with(able, Capability.discarded)
        self._answering = those_with(able, Capability.answering)
        self.actions: dict[type, Callable[[Any], None]] = {
            events.Grant: self._grant,
            events.Fold: self._fold,
            events.Hold: self._move,
            events.Share: self._move,
            events.Forget: self._move,
            events.Show: self._show,
            events.WakeAt: lambda wake: replies.wake_at(wake.time_s),
            events.Discard: self._discard,
            events.Cancel: self._cancel,
            events.Leased: self._leased,
            events.Evict: self._evict,
        }
        """What is done of each kind of effect."""
        self.supplies: dict[type, Supplies] = {LeaseRequest: self._lease}
        """Who supplies a worker with what it needs, of each kind."""
        self.orders: dict[type, Callable[[Any, float], None]] = {}
        """What is done of each kind of order that whoever watches the run gives."""
        self._nbytes: dict[type, Callable[[int, Any], int]] = {}
        for one in able:
            self.actions |= one.actions
            self.supplies |= one.supplies
            self.orders |= one.orders
            self._nbytes |= one.nbytes

    @property
    def meter(self) -> Meter:
        """The figures of all that was done so far."""
        self._count()
        return self._meter

    def _count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for count in uncounted:
            count()

    def nbytes(self, kind: type, worker: int, about: Any) -> int:
        """What goes over the line with a message of this `kind`, but for parameters; `about`: what the worker said."""
        return self._nbytes[kind](worker, about) if kind in self._nbytes else 0

    def take_strategy(self) -> None:
        """Go by the strategy that the sequencer goes by."""
        strategy = self.strategy = self.sequencer.strategy
        self._paces = Paces(strategy.every) if strategy.every.paced else None
        self._agreement = self._agreement.under(strategy)

    # Of the run as a whole

    def begin(self, memory: Memory, now_s: float) -> None:
        """Training begins with the parameters in `memory`: the first worker's, or a checkpoint's in their place."""
        workers = self.sequencer.workers
        self.memory = self.recorder.memory = memory
        resumed = self.checkpointer.restore(memory, self.go_back)
        memory.states.lacking({})
        if not resumed:
            memory.begin(self.version)
        self.begun, self.began_at = True, self.version
        if resumed:
            if begins := self.checkpointer.begins:
                self.recorder.keep(JournalWriter.note, begins, now_s)
            self.recorder.keep(JournalWriter.resumed, self.version, self.checkpointer.held_again, now_s)
            if anew := self.checkpointer.begins_anew():
                self.trouble(None, anew)
        if self.sequencer.workers != workers:  # the checkpoint is of another number
            self.receive(events.Scaled(workers), now_s)
        self.before = self.checkpointer.taken
        self.is_finite()
        if memory.note:
            self.trouble(None, memory.note)
        for one in self._able:
            one.begun(resumed, now_s)

    def go_back(self, state: SequencerState) -> None:
        """Go on from a checkpoint: nobody is a member, and what came and was not folded is forgotten."""
        was = self.sequencer
        self.listening = [False] * len(self.listening)
        self._seen.clear()
        for one in self._able:
            one.went_back()
        self.sequencer = was.gone_back(state)
        self.began_at = self.version
        self.take_strategy()
        self.memory.do(events.Share(self.sequencer.workers))
        if (own := self.memory.own) is not None:
            own.go_back(self.version)

    def scale(self, workers: int, now_s: float) -> None:
        """The run is to have so many workers from now on."""
        was = self.sequencer.workers
        self.receive(events.Scaled(workers), now_s)
        self.trouble(None, f"scaled from {was} to {workers} workers")

    def close_memory(self) -> None:
        self.begun = False
        self.memory = self.recorder.memory = Memory()

    def tick(self, now_s: float) -> None:
        """Time went by: workers that were silent for too long are evicted, and what is due is written."""
        if self.begun:
            self.receive(events.Ticked(), now_s)
        self.recorder.flush()
        self._tell_news()
        self.keep_late(now_s)
        if self.begun and not self.stopping and self._timing.due(now_s):  # who hears of the stop leaves a fold early
            self.keep(now_s)

    def _tell_news(self) -> None:
        while news := self.memory.take_news():
            self.trouble(None, news)

    def stop(self, now_s: float) -> None:
        self.stopping, self.ended_s = True, now_s
        self._timing.stopped()
        self.keep(now_s)
        for one in self._able:
            one.stopped(now_s)

    def when_whole(self, do: Callable[[], None], held: bool = False) -> None:
        """Do this when the parameters in memory are whole; `held`: and what workers hold of their own is there."""
        own = self.memory.own
        if own is None or not self.sequencer.members.seats:
            do()
        else:
            own.when_seen(do, held)

    def look(self) -> None:
        """Where all workers are in this process: have the parameters of this version in memory."""
        if (own := self.memory.own) is not None and self.sequencer.members.seats:
            own.look_at(min(self.sequencer.members.seats), self.version)

    def keep(self, now_s: float, last: bool = False) -> None:
        """Write a checkpoint, if they are asked for; nobody is heard meanwhile, and training goes on if that fails. `last`: no
        worker is left."""
        if not (self.checkpointer.writes and self.begun):
            return
        lacking = partial(self.checkpointer.lacking, self.memory, self.sequencer)
        without = self._timing.asked(now_s, self.unsettled, tuple if last else lacking)
        if self._timing.holds_up_end:
            self._writes(True)
        if without is None:
            return
        if without:
            self.memory.states.lacking({})
            who, waited_s = ", ".join(map(str, without)), self._timing.patience_s
            self.trouble(None, f"no exchange of worker {who} for {waited_s:g} s: the checkpoint lacks what it holds")
        self.when_whole(partial(self._keep, now_s), held=True)

    def keep_late(self, now_s: float) -> None:
        """Write the checkpoint that somebody waits for, if it may be written by now."""
        if self._timing.waits:
            self.keep(now_s)

    @property
    def unsettled(self) -> bool:
        """Whether a checkpoint has to wait: what the run is able to do wants it."""
        return any(one.unsettled() for one in self._able)

    def _writes(self, under_way: bool) -> None:
        if under_way != self._writing:
            self._writing = under_way
            self.tell(Writing(under_way))

    def _keep(self, now_s: float) -> None:
        if self.is_finite():
            self._writes(True)
            self.recorder.keep(JournalWriter.flush, durable=True)
            if why_not := self.checkpointer.write(self.sequencer, self.memory, self.recorder.position):
                self.trouble(None, why_not)
        self._writes(False)

    def is_finite(self) -> bool:
        """Whether the parameters of this version may be kept; the first time they may not, that is told."""
        return self.non_finite.allows(self.memory.not_finite(), self.version)

    def end(self, now_s: float) -> None:
        """No worker is left: the clock stops, if nobody stopped it."""
        self.ended_s = self.ended_s or now_s

    @property
    def counts_together(self) -> bool:
        """Whether workers share counters."""
        return Counters.name in self.checkpointer.attachments.answer

    def close(self, now_s: float) -> None:
        """The run ended in order: keep what is to be kept."""
        if not self.begun:
            return
        self._tell_news()
        self.look()
        if (own := self.memory.own) is not None and (lost := own.lost(self.version)):
            self.trouble(None, lost)
        self.is_finite()
        if self._timing.owed:
            self.keep(now_s, last=True)
        if self._timing.waits:
            self.trouble(None, f"there is no checkpoint of version {self.version}: it could not be gone on from")
        self._writes(False)
        self.recorder.end(self.version, now_s)

    def left_over(self) -> tuple[int, ...]:
        """The descriptors of files with what is left beside the parameters."""
        return tuple(file for one in self._able for file in one.left_over())

    @property
    def version(self) -> int:
        return self.sequencer.version

    def standing(self, now_s: float) -> tuple[float, int, int]:
        """The time since training began, the version, and the samples so far. After the stop time stands still, but for a version
        that is made from steps that were under way then."""
        time_s = max(self.ended_s or now_s, self.made_s) - self.meter.zero_s
        return time_s, self.version, self.before.samples + self.meter.samples

    def trouble(self, worker: int | None, what: str, fatal: str = "", kind: str = "", died: bool = False) -> None:
        """Tell what happened (to `worker`); `fatal`: and why that ends the run, by an error of class `kind`."""
        time_s = self.replies.now_s() - self.meter.zero_s if self.meter.begun else 0.0
        self.tell(Trouble(Incident(time_s, worker, cut(what)), fatal, kind, died))

    # What a worker says

    def returned(self, worker: int) -> None:
        """Somebody has taken a dead worker's seat."""
        self.meter.workers[worker].left = ""
        self.trouble(worker, f"worker {worker} is back" if not self._inherits else BEGUN_ANEW)

    def joined(self, worker: int, incarnation: int, now_s: float, at: events.Whereabouts | None = None) -> None:
        if worker in self._seen:
            self.checkpointer.again(worker)
            self._forget(worker, not self._inherits)
        self._agreement.came_late |= self.version > self.began_at
        self._seen.add(worker)
        self._told_choices[worker] = 0
        self.listening[worker] = True
        meter = self.meter.workers[worker]
        meter.came = True
        self.meter.totals.joins += 1
        for one in self._able:
            one.joined(worker, now_s)
        self._joining[worker] = incarnation
        if self.version == self.began_at:
            self._join(worker, incarnation, now_s, at)
        else:
            self.when_whole(partial(self._join, worker, incarnation, now_s, at), held=True)

    def _join(self, worker: int, incarnation: int, now_s: float, at: events.Whereabouts | None) -> None:
        if self._joining.get(worker) != incarnation:  # it ended before it began
            return
        del self._joining[worker]
        self.memory.joins(worker)
        self.receive(events.Joined(worker, incarnation, at), now_s)

    def pushed(
        self, worker: int, incarnation: int, made: Contribution, now_s: float, ready_s: float | None = None
    ) -> None:
        """A contribution lies in its slot; `ready_s`: when it was done, if that is known better than by what it says."""
        memory, members = self.memory, self.sequencer.members
        if (own := memory.own) is not None and made.steps and members.seat(worker, incarnation) is not None:
            own.came(worker, made.number, self.version)
        if self._paces is not None:
            self._paces.took(worker, made.steps, made.worked_s)
        self._uncounted.append(partial(self._count_pushed, worker, made, ready_s))
        if self.checkpointer.counts:
            self.checkpointer.came(worker, made.number, WorkerProgress(1, made.steps, made.samples, made.batches))
        memory.told(worker, made)
        if made.attachments:
            self._told(worker, made.attachments, now_s)
            for came in self._came:
                came(worker, incarnation, made)
        if made.optimizer or self._agreement.watches:
            self._agreement.came(worker, made.optimizer)
        self.receive(event_of(made, worker, incarnation), now_s, made.loss)
        if self._timing.waits:
            self.keep(now_s)
        self._meter.served(worker, now_s, self.replies.now_s(), made.missing)
        if not made.finite:
            self.non_finite.discarded(worker, f"contribution {made.number}")

    def _count_pushed(self, worker: int, made: Contribution, ready_s: float | None) -> None:
        meter = self._meter.workers[worker]
        meter.pushed(
            meter.granted_s + made.worked_s if ready_s is None else ready_s, made.steps, made.samples, made.number
        )
        if made.aside is not None or meter.ahead:
            told = meter.ahead and ready_s is None  # else the driver tells of waits itself
            meter.goes_on(made.beside.goes_on, made.beside.waited_s if told else 0.0)

    def _told(self, worker: int, riding: Attached, now_s: float) -> None:
        try:
            self.checkpointer.attachments.told(worker, riding, now_s)
        except ConfigurationError as error:
            self.trouble(worker, str(error), str(error), type(error).__name__)

    def abandoned(self, worker: int, incarnation: int, step: DroppedStep, now_s: float) -> None:
        self.meter.workers[worker].heard(step.worked_s)
        self.receive(events.Abandoned(worker, incarnation, step.batches, step.look), now_s)

    def _lease(self, worker: int, incarnation: int, asked: LeaseRequest, now_s: float) -> bool:
        """It wants data; whether it is a member. A run that is stopped gives none, but for single batches to the round under
        way, which would be a smaller one else, and to who has to come to an exchange for the last checkpoint."""
        most = asked.most
        if self.ended_s is not None:
            whole_round = self.strategy.gather.in_rounds and now_s - self.ended_s <= WHOLE_ROUND_S
            if not whole_round and not self._timing.awaits_states:
                self.replies.supplied(worker, LeaseReply(stop=True))
                return True
            most = min(most, 1)
        why = self.sequencer.leases.disagreement(worker, asked.epoch, asked.total, asked.digest)
        if why:
            self.replies.refused(worker, why)
            return True
        return self.receive(
            events.LeaseWanted(worker, incarnation, asked.epoch, asked.total, most, asked.unused, asked.ahead), now_s
        )

    def over(self, worker: int, died: bool, how: str = "died", told: bool = False) -> None:
        """A process works no more: it finished, was `told` to leave, or died. What it had sent may still be on its way."""
        self.listening[worker] = False
        self._joining.pop(worker, None)
        meter = self.meter.workers[worker]
        evicted = meter.left == "evicted"  # which was counted
        meter.left_s, meter.left = self.replies.now_s(), "died" if died else TOLD if told else "finished"
        if died and not self.stopping:
            self.meter.totals.deaths += not evicted
            alone = all(one.left for one in self.meter.seated)
            lent = self.sequencer.leases.per_epoch is not None  # else each has data of its own
            others = "" if alone else f"; the others go on{', its data goes to them' if lent else ''}"
            if self.strategy.keeps_inner_state:
                others += "; the state of its optimizer is lost"
            what = f"worker {worker} {how}{others}"
            if self._inherits:
                state = "" if self.begun and self.memory.states.leaves else "; the state of the optimizer begins anew"
                what = f"what the workers did after version {self.version} is lost, and its data leased again{state}"
            self.trouble(worker, what, died=True)

    def left(self, worker: int, incarnation: int, died: bool, now_s: float, early: bool = False) -> None:
        """Nothing comes of it any more. `early`: it left in good order before its training function was over."""
        seat = self.sequencer.members.seat(worker, incarnation)
        state = None
        if died and seat is not None and self._inherits:
            state = self.memory.states.of(worker, seat.arrived)
        self._forget(worker, died)
        if state is not None:
            self.memory.states.hand_to(worker, state)
        own, waits = self.memory.own, seat is not None and seat.waiting is not None
        if own is not None and seat is not None and (wrong := own.left(worker, died, waits, self.version)):
            self.trouble(worker, f"worker {worker} {wrong}")
        self.receive(events.Left(worker, incarnation, died, early), now_s)
        if own is not None and not self.sequencer.members.seats:
            own.nobody_left()

    def _forget(self, worker: int, lost: bool) -> None:
        """Of who is gone no pace is known; what it held is `lost`, or for the process that the run may be resumed with."""
        if lost:
            self.memory.states.hand_to(worker, None)
        if self._paces is not None:
            self._paces.forget(worker)

    # What the sequencer says

    def receive(self, event: Event, now_s: float, loss: float = nan) -> bool:
        """Have `event`, of `now_s`, decided, and do what is to be done; whether there was anything."""
        self.now_s = now_s
        effects = self.sequencer.receive(event, now_s)
        actions = self.actions
        for effect in effects:
            actions[type(effect)](effect)
        self.replies.decided()
        self._count()  # those who may go on need not wait for figures, nor for the journal
        self.recorder.told(event, effects, now_s, loss)
        return bool(effects)

    def _move(self, effect: events.Hold | events.Share | events.Forget) -> None:
        self.memory.do(effect)

    def _show(self, show: events.Show) -> None:
        if self.listening[show.worker]:
            self.memory.show(show)

    def _answer(self, effect: events.Grant | events.Cancel) -> Located:
        """What a worker that is to go on is told, and where what it goes on from lies."""
        if not (self._answers or self._answering):  # it only takes time
            return NO_ANSWER
        answer = self._told_by(effect) if self._answers else GoOn(0, False, Verdict.TAKEN)
        for answering in self._answering:
            answering(answer)
        return self.memory.located(effect.worker, answer) if self._answers else Located(answer, 0)

    def _told_by(self, effect: events.Grant | events.Cancel) -> Answer:
        worker, version, stop, attachments = effect.worker, effect.version, self.stopping, self.checkpointer.attachments
        if effect.number:
            return GoOn(version, stop, effect.verdict, effect.staleness, attachments.answer, effect.steps)
        before = asdict(self.checkpointer.before[worker])
        return Beginning(version, stop, **before, attachments=attachments.beginning(worker), steps_granted=effect.steps)

    def _grant(self, grant: events.Grant) -> None:
        worker, number = grant.worker, grant.number
        if number and self.checkpointer.counts:  # it is dealt with, whether anybody is left to hear of that
            self.checkpointer.answered(worker, number, grant.verdict is Verdict.STALE)
        if not self.listening[worker]:
            return
        if self._paces is not None:
            grant = replace(grant, steps=self._paces.allowed(worker))
        has_it_s = self.replies.granted(grant, self._answer(grant))
        released_s = self.now_s if grant.freed_by_other else None
        self._uncounted.append(partial(self._meter.granted, worker, number, has_it_s, released_s))

    def _cancel(self, cancel: events.Cancel) -> None:
        worker = cancel.worker
        if self.checkpointer.counts:
            self.checkpointer.answered(worker, cancel.number, late=True)
        if not self.listening[worker]:
            return
        heard_s = self.replies.called_off(cancel, self._answer(cancel))
        self._uncounted.append(partial(self._meter.cancelled, worker, cancel.number, heard_s))

    def _fold(self, fold: events.Fold) -> None:
        self.made_s = self.now_s
        self._uncounted.append(partial(self._meter.folded, fold.members))
        if self._agreement.watches:
            self._agreement.check(fold, self.sequencer.workers)
        try:
            self.memory.fold(fold)
            for folded in self._folded:
                folded(fold)
        except (ConfigurationError, CheckpointError) as error:
            self.trouble(None, str(error), str(error), type(error).__name__)

    def _discard(self, discard: events.Discard) -> None:
        if discard.verdict in (Verdict.DUPLICATE, Verdict.FENCED):
            self.replies.repeated(discard)
        else:
            for discarded in self._discarded:
                discarded(discard)
            self._uncounted.append(partial(self._meter.dropped, discard.worker, discard.verdict.words))

    def _leased(self, leased: events.Leased) -> None:
        worker, choices = leased.worker, self.sequencer.leases.choices
        if not self.listening[worker]:
            return
        reply = LeaseReply(leased.batches, False, leased.epoch, leased.through, leased.begun_s)
        if (drawn := self.checkpointer.attachments.order) is not None:
            reply = replace(reply, drawn=drawn)
        if choices and (new := choices[self._told_choices[worker] :]):
            reply, self._told_choices[worker] = replace(reply, choices=tuple(new)), len(choices)
        self.replies.supplied(worker, reply)

    def _evict(self, evict: events.Evict) -> None:
        worker = evict.worker
        others = "while others waited for it" if self.sequencer.members.seats else "and all the others had ended"
        self.trouble(worker, f"worker {worker} was silent for {evict.silent_s:.0f} s {others}: evicted")
        self._forget(worker, True)
        self.listening[worker] = False
        meter = self.meter.workers[worker]
        meter.left_s, meter.left = self.now_s, "evicted"
        self.meter.totals.deaths += 1
        self.replies.evicted(evict)


def event_of(made: Contribution, worker: int, incarnation: int) -> events.Pushed:
    usual = events.Pushed(worker, incarnation, made.number, made.steps, made.samples, made.batches, made.finite)
    return usual if made.aside is None else made.aside.added_to(usual)
