"""A run in virtual time: the real sequencer decides, messages and steps take simulated seconds, nothing waits for real.

Theory. A worker is a `Participant`: told an answer and the time it has it, it says what it sends next and when. All of
its work is done at that moment, that is, when the server *decides* the answer, and only its time passes afterwards: so
no version has to be kept for anybody. What a worker has still to send is void if it dies or hears that its step was called
off before that.

| state of a worker  | Grant, Leased | Cancel                                    | Crash, Leave            | Restart, Join   |
| ------------------ | ------------- | ----------------------------------------- | ----------------------- | --------------- |
| computing          | -             | restarts; sent before it hears: DUPLICATE | absent, its future void | -               |
| message on its way | -             | goes on; its message is a DUPLICATE       | absent, message arrives | -               |
| waiting            | computing     | - (wants data: restarts once it has them) | absent                  | -               |
| absent             | (ignored)     | (ignored)                                 | -                       | new incarnation |
| finished           | -             | -                                         | -                       | -               |

Promises: the same arguments give the same run, event for event; the figures mean what those of a real run mean, with
virtual seconds for seconds. Two differences: whoever was evicted while it was cut off joins anew as soon as it is heard again,
and the last ones left are never evicted, however long their steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from plesio.cluster import Cluster, Crash
from plesio.cluster.faults import Turn
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
    Ticked,
    Verdict,
)
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.errors import ConfigurationError
from plesio.launch.simulated.clock import VirtualClock
from plesio.launch.simulated.limits import NO_LIMITS, Limits
from plesio.launch.simulated.messages import Answer, Finish, Lease, Message, Push
from plesio.launch.simulated.network import network_of
from plesio.launch.simulated.workers import Folder, Participant
from plesio.observe.meter import SPANS_MAX, Meter
from plesio.observe.summary import Incident, limit_reached
from plesio.protocol.launcher import Final
from plesio.server.closing import final_figures
from plesio.server.not_finite import NotFinite
from plesio.server.recording import Recorder
from plesio.strategy import Strategy

TICKS = 10
"""How many times in the time that a worker may be silent it is asked whether one is."""


class State(Enum):
    """Whether a worker's process is there."""

    ABSENT = "absent"
    HERE = "here"
    FINISHED = "finished"


class _Worker:
    """A participant and where it stands. `listens`: the server knows this incarnation, so that answers reach it."""

    __slots__ = ("called_off", "incarnation", "latest", "listens", "number", "participant", "state")

    def __init__(self, participant: Participant) -> None:
        self.participant = participant
        self.incarnation = 0
        self.number = 1
        self.latest: Message | None = None
        self.listens = False
        # While it waited for data, with the buffer it goes on from and when that is there.
        self.called_off: tuple[Cancel, int, float] | None = None
        self.state = State.ABSENT


class VirtualRun:
    """One run in virtual time.

    Args:
        strategy: how tightly workers keep step.
        cluster: links, and faults over time.
        participants: one for each worker of the cluster; their timetables are their own.
        folder: does the arithmetic.
        answer_nbytes: the bytes of the parameters a worker takes back.
        stealing: fast workers take more of the data.
        silence_s: how long a worker may be silent while others wait for it.
        limits: when to end before the workers do.
        evaluate: called with the time and the version every `evaluate_every_s`; a reason ends the run.
        timeline: keep every span of every worker for the timeline.
        recorder: keeps the journal.

    Raises:
        StrategyError: a strategy that cannot work with that many workers.
        ConfigurationError: not one participant a worker; or, from `run`, workers that disagree on the data's size.
    """

    def __init__(
        self,
        strategy: Strategy,
        cluster: Cluster,
        participants: Sequence[Participant],
        folder: Folder,
        *,
        answer_nbytes: int = 0,
        stealing: bool = False,
        silence_s: float = 300.0,
        limits: Limits = NO_LIMITS,
        evaluate: Callable[[float, int], str | None] | None = None,
        evaluate_every_s: float = 1.0,
        timeline: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        if len(participants) != cluster.workers:
            raise ConfigurationError(f"{len(participants)} participants for a cluster of {cluster.workers} workers")
        strategy.check_workers(cluster.workers)
        self.clock = VirtualClock()
        self.meter = Meter(cluster.workers, SPANS_MAX if timeline else 0)
        self.sequencer = Sequencer(strategy, cluster.workers, DataLeases(cluster.workers, stealing), silence_s)
        self.incidents: list[Incident] = []
        self.ended = ""
        self.steps = self.samples = self.nbytes = 0
        self._cluster = cluster
        self._network = network_of(strategy.via, cluster, self.clock)
        self._folder = folder
        self.answer_nbytes = answer_nbytes
        self.recorder = recorder or Recorder()
        self._silence_s = silence_s
        self._limits = limits
        self._counts_end = min(limits.steps, limits.samples, limits.contributions) < float("inf")
        self._evaluate = evaluate
        self._evaluate_every_s = evaluate_every_s
        self._workers = [_Worker(one) for one in participants]
        self._here = 0  # processes that the server has not seen the end of
        self._keeps_slot = strategy.release.after_fold
        self._spoiled = NotFinite()
        self._in_slot: set[int] = set()  # workers whose contribution lies in their slot until the fold
        self._to_rejoin: set[int] = set()  # workers back again, to be let in once their slot is free
        self._silent_until_s = 0.0
        self._ticking = False

    # The loop

    def run(self) -> Final:
        """Run to the end; what it cost, in virtual seconds."""
        self.meter.begin(0.0)
        try:
            self._prepare()
            step = self.clock.step
            while not self.ended and step():
                pass
            self.ended = self.ended or "finished"
        finally:
            for worker in self._workers:
                if worker.state is State.HERE:
                    worker.participant.end()
        return self._final()

    def _prepare(self) -> None:
        if self._limits.seconds < float("inf"):
            self.clock.at(self._limits.seconds, self.end, limit_reached("seconds", self._limits.seconds))
        if self._evaluate is not None:
            self.clock.at(0.0, self._evaluation, None)
        for turn in self._cluster.turns():
            self.clock.at(turn.at_s, self._turn, turn)
        absent = self._cluster.absent()
        for worker in range(len(self._workers)):
            if worker not in absent:
                self._begin(worker)
                self._joined(worker)

    def end(self, why: str) -> None:
        """End the run after what is being done now; the first reason counts."""
        self.ended = self.ended or why

    def end_at(self, time_s: float, why: str, worker: int) -> None:
        """End the run at `time_s`, if this process of `worker` is there until then."""
        self.clock.at(max(time_s, self.clock.now_s), self._end_for, (worker, self._workers[worker].incarnation, why))

    def _end_for(self, asked: tuple[int, int, str]) -> None:
        index, incarnation, why = asked
        worker = self._workers[index]
        if worker.incarnation == incarnation and worker.state is not State.ABSENT:
            self.end(why)

    def _evaluation(self, _: None) -> None:
        assert self._evaluate is not None, "planned only if there is one"
        why = self._evaluate(self.clock.now_s, self.sequencer.version)
        if why:
            self.end(why)
        self.clock.at(self.clock.now_s + self._evaluate_every_s, self._evaluation, None)

    def _cut_short(self, index: int) -> None:
        """Count what a worker is doing when the run ends up to that time, or the longest waits would be missing."""
        worker, meter, now_s = self._workers[index], self.meter.workers[index], self.clock.now_s
        meter.cut(now_s)
        seat = self.sequencer.members.seats.get(index)
        if worker.state is not State.HERE or not worker.listens or seat is None or worker.latest is None:
            return
        if seat.waiting is not None:
            meter.ended_held(now_s)
        elif not isinstance(worker.latest.request, Finish):
            step = worker.latest.request
            meter.ended_amid(now_s, step.ready_s if isinstance(step, Push) else now_s)

    def _final(self) -> Final:
        for worker in range(len(self._workers)):
            self._cut_short(worker)
        figures = final_figures(self.clock.now_s, self.sequencer, self.meter)
        return msgspec.structs.replace(figures, bytes=self.nbytes)

    # Workers come and go

    def _turn(self, turn: Turn) -> None:
        worker = self._workers[turn.worker]
        if worker.state is State.HERE and not turn.alive:
            self._go(turn.worker, died=isinstance(turn, Crash))
        elif worker.state is State.ABSENT and turn.alive:
            self._begin(turn.worker)
            self._send(turn.worker, self.clock.now_s, 0, self._joined, turn.worker)
        self._end_if_over()

    def _begin(self, index: int) -> None:
        """A new process starts."""
        worker = self._workers[index]
        if worker.state is not State.HERE:
            self._here += 1
        worker.state, worker.listens, worker.latest, worker.called_off = State.HERE, False, None, None
        worker.incarnation += 1
        worker.number = 1
        self.meter.workers[index].left = None
        worker.participant.begin(worker.incarnation)

    def _joined(self, index: int) -> None:
        worker = self._workers[index]
        if worker.state is not State.HERE or worker.listens:
            return  # it died on the way
        if index in self._in_slot:
            self._to_rejoin.add(index)
            return
        worker.listens = True
        self._receive(Joined(index, worker.incarnation))

    def _go(self, index: int, died: bool) -> None:
        """A process ends now."""
        worker, now_s = self._workers[index], self.clock.now_s
        self._stop(index)
        worker.state, worker.listens = State.ABSENT, False
        self.meter.workers[index].left = "died" if died else "finished"
        if died:
            self._incident(index, f"worker {index} died; the others go on, its data goes to them")
        self._send(index, now_s, 0, self._left, Left(index, worker.incarnation, died))

    def _stop(self, index: int) -> None:
        """A process works no more: what it had not sent yet is void."""
        worker, meter, now_s = self._workers[index], self.meter.workers[index], self.clock.now_s
        if worker.latest is not None and worker.latest.request.ready_s > now_s:
            worker.latest.void = True
            meter.cut(now_s)
            meter.cancelled(now_s)
        worker.participant.end()

    def _left(self, event: Left) -> None:
        self._folder.forget(event.worker)
        self._receive(event)
        self._here -= 1
        self._end_if_over()

    def _end_if_over(self) -> None:
        """Nobody is here, and nobody will come."""
        if self._here == 0 and not any(
            turn.alive and turn.at_s > self.clock.now_s and self._workers[turn.worker].state is State.ABSENT
            for turn in self._cluster.turns()
        ):
            self.end("finished")

    def _rejoin(self, index: int) -> None:
        """The server does not know this worker any more (it was evicted): it joins anew."""
        self._stop(index)
        self._begin(index)
        self._send(index, self.clock.now_s, 0, self._joined, index)

    # What workers send

    def _go_on(self, index: int, answer: Answer, buffer: int, has_it_s: float) -> None:
        """Tell a worker to go on, and plan what it sends next."""
        worker = self._workers[index]
        request = worker.participant.go_on(answer, buffer, has_it_s)
        assert request.ready_s >= has_it_s, f"worker {index} answered before it was asked: {request}"
        message = Message(index, worker.incarnation, worker.number, request)
        worker.latest = message
        if worker.called_off is not None and isinstance(request, Push):
            message.void = True  # it was called off before it began
            self._call_off(index, has_it_s)
            return
        nbytes = request.nbytes if isinstance(request, Push) else 0
        self._send(index, request.ready_s, nbytes, self._arrived, message)

    def _send(self, index: int, sent_s: float, nbytes: int, arrive: Callable[..., object], what: object) -> None:
        """Send something to the server; if that takes long, look out for those who wait for it."""
        due_s = self._network.send(index, sent_s, nbytes, arrive, what)
        if due_s - self.clock.now_s > self._silence_s and due_s < float("inf"):
            self._silent_until_s = max(self._silent_until_s, due_s)
            if not self._ticking:
                self._ticking = True
                self.clock.at(self.clock.now_s + self._silence_s, self._tick, None)

    def _tick(self, _: None) -> None:
        if self.sequencer.members.waiting:  # for the last ones left nobody need stop waiting: virtual time is short
            self._receive(Ticked())
        self._ticking = self.clock.now_s < self._silent_until_s
        if self._ticking:
            self.clock.at(self.clock.now_s + self._silence_s / TICKS, self._tick, None)

    def _arrived(self, message: Message) -> None:
        request = message.request
        if message.void:
            return
        if isinstance(request, Push):
            self._pushed(message, request)
        elif isinstance(request, Lease):
            self._lease_wanted(message, request)
        elif self._workers[message.worker].incarnation == message.incarnation:
            self._workers[message.worker].state = State.FINISHED
            self.meter.workers[message.worker].left = "finished"
            self._left(Left(message.worker, message.incarnation, died=False))

    def _pushed(self, message: Message, push: Push) -> None:
        worker = message.worker
        meter = self.meter.workers[worker]
        if not message.counted:
            meter.pushed(push.ready_s, push.steps, push.samples)
        meter.held_since_s = self.clock.now_s
        self.meter.exchanges += 1
        self.nbytes += push.nbytes
        self.steps += push.steps
        self.samples += push.samples
        if self._keeps_slot:
            self._in_slot.add(worker)
        if push.groups:
            self._folder.set_groups(worker, push.groups)
        self.recorder.loss = push.loss
        self._receive(
            Pushed(worker, message.incarnation, message.number, push.steps, push.samples, push.batches, push.finite)
        )
        if not push.finite and (before := self._spoiled.count(worker)) is not None:
            what = f"contribution {message.number} of worker {worker} held a NaN or an infinity: discarded{before}"
            self._incident(worker, what)
        if self._counts_end:
            self.end(self._limits.reached(self.steps, self.samples, self.meter.exchanges))

    def _lease_wanted(self, message: Message, lease: Lease) -> None:
        why = self.sequencer.leases.disagreement(message.worker, lease.epoch, lease.total, lease.digest)
        if why:
            raise ConfigurationError(why)
        wanted = LeaseWanted(message.worker, message.incarnation, lease.epoch, lease.total, lease.most, lease.unused)
        if not self._receive(wanted):
            self._fenced(message.worker, message.incarnation)

    def _fenced(self, index: int, incarnation: int) -> None:
        worker = self._workers[index]
        if worker.state is State.HERE and worker.incarnation == incarnation:
            self._rejoin(index)

    # Doing what the sequencer says

    def _receive(self, event: Event) -> list[Effect]:
        self.recorder.told(event, self.clock.now_s)
        effects = self.sequencer.receive(event, self.clock.now_s)
        for effect in effects:
            if isinstance(effect, Grant):
                self._grant(effect)
            elif isinstance(effect, Fold):
                self._fold(effect)
            elif isinstance(effect, Discard):
                self._discard(effect)
            elif isinstance(effect, Hold):
                self._folder.hold(effect.worker, effect.weight)
            elif isinstance(effect, Cancel):
                self._cancel(effect)
            elif isinstance(effect, Leased):
                if self._workers[effect.worker].listens:
                    self._go_on(effect.worker, effect, -1, self._network.answer(effect.worker, 0))
            elif isinstance(effect, Evict):
                self._evict(effect)
            self.recorder.done(effect, self.clock.now_s)
        if self._to_rejoin:
            self._let_in()
        return effects

    def _grant(self, grant: Grant) -> None:
        worker = self._workers[grant.worker]
        if not worker.listens:
            return
        buffer = self._folder.publish(grant.worker)
        has_it_s = self._answer(grant.worker, grant.version)
        meter = self.meter.workers[grant.worker]
        if grant.number:
            worker.number = grant.number + 1
            meter.granted(has_it_s, self.clock.now_s if grant.freed_by_other else None)
        else:
            meter.granted_s = has_it_s
        self._go_on(grant.worker, grant, buffer, has_it_s)

    def _answer(self, index: int, version: int) -> float:
        """When the parameters are with a worker; the first version is everywhere from the start."""
        if version == 0 and self.clock.now_s == 0.0:
            return 0.0
        self.nbytes += self.answer_nbytes
        return self._network.answer(index, self.answer_nbytes)

    def _fold(self, fold: Fold) -> None:
        for member in fold.members:
            self.meter.folded(member.worker, member.staleness)
        if self._keeps_slot:
            self._in_slot.difference_update([member.worker for member in fold.members])
        self._folder.fold(fold)

    def _discard(self, discard: Discard) -> None:
        self._in_slot.discard(discard.worker)
        if discard.verdict is Verdict.FENCED:
            self.meter.workers[discard.worker].void()
            self._fenced(discard.worker, discard.incarnation)
        elif discard.verdict is not Verdict.DUPLICATE:
            self.meter.dropped(discard.worker, discard.verdict.words)

    def _cancel(self, cancel: Cancel) -> None:
        """A step is called off: void, unless it is on its way, or its worker waits for data, by the time this is heard."""
        worker = self._workers[cancel.worker]
        if not worker.listens or worker.latest is None or isinstance(worker.latest.request, Finish):
            return
        worker.number = cancel.number + 1
        buffer = self._folder.publish(cancel.worker)
        has_it_s = self._answer(cancel.worker, cancel.version)
        worker.called_off = (cancel, buffer, has_it_s)
        if isinstance(worker.latest.request, Push):
            self._call_off(cancel.worker, has_it_s)

    def _call_off(self, index: int, listens_s: float) -> None:
        """The worker hears that its latest request is called off; what it waits for comes at `listens_s`."""
        worker, meter = self._workers[index], self.meter.workers[index]
        assert worker.called_off is not None and worker.latest is not None, "there is a step to call off"
        (cancel, buffer, has_it_s), worker.called_off = worker.called_off, None
        heard_s = max(listens_s, has_it_s)
        message = worker.latest
        request = message.request
        if isinstance(request, Push) and request.ready_s <= heard_s and not message.void:
            meter.pushed(request.ready_s, request.steps, request.samples)
            meter.void()
            message.counted = True
            meter.granted(heard_s, None)
        else:
            message.void = True
            meter.cancelled(heard_s)
            batches = request.batches if isinstance(request, Push) else 0
            self._send(index, heard_s, 0, self._receive, Abandoned(index, worker.incarnation, batches))
        self._go_on(index, cancel, buffer, heard_s)

    def _evict(self, evict: Evict) -> None:
        self._folder.forget(evict.worker)
        self._workers[evict.worker].listens = False
        self.meter.workers[evict.worker].left = "evicted"
        self._incident(
            evict.worker,
            f"worker {evict.worker} was silent for {evict.silent_s:.0f} s while others waited for it: evicted",
        )

    def _let_in(self) -> None:
        """Let in those who came back while their last contribution was not folded yet, and now is."""
        for index in sorted(self._to_rejoin - self._in_slot):
            self._to_rejoin.discard(index)
            self._joined(index)

    def _incident(self, worker: int, what: str) -> None:
        self.incidents.append(Incident(self.clock.now_s, worker, what))
