"""A run in virtual time: the server's program decides, messages and steps take simulated seconds, nothing waits for real.

Theory. A worker is a `Participant`: told an answer and the time it has it, it says what it sends next and when. All of
its work is done at that moment, that is, when the server *decides* the answer, and only its time passes afterwards: so
no version has to be kept for anybody. What a worker has still to send is void if it dies or hears that its step was called
off before that.

A worker that goes on while its answer travels (`adopt=Rebase()`) is asked for one step at a time: at the end of each it looks
whether the answer has come by then.

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

from collections.abc import Callable, Mapping, Sequence
from math import inf

from plesio.cluster import Cluster, Crash
from plesio.cluster.faults import Turn
from plesio.config.until import limit_met
from plesio.core.events import Cancel, Discard, Event, Grant, Left, Ticked, Verdict
from plesio.core.leases import DataLeases
from plesio.core.membership import Seat
from plesio.core.sequencer import Sequencer
from plesio.errors import ConfigurationError, PlesioError, error_class
from plesio.launch.simulated.clock import Silence, VirtualClock
from plesio.launch.simulated.network import network_of
from plesio.launch.simulated.process import Process
from plesio.launch.simulated.workers import Answer, Message, Participant, State
from plesio.memory.port import Memory
from plesio.observe.meter import SPANS_MAX, Meter
from plesio.observe.summary import Incident, limit_reached
from plesio.protocol.launcher import BeginRound, Final, Progress, RoundMade, StopRequest, ToServer, Trouble, Writing
from plesio.protocol.worker import Contribution, GoOn, Need, Supply
from plesio.server.checkpointer import Checkpointer
from plesio.server.figures import Figures
from plesio.server.interfaces import Replies
from plesio.server.program import NO_ANSWER, Program
from plesio.server.recording import Recorder
from plesio.strategy import Strategy
from plesio.tensors.arena import ALL_PARTS
from plesio.transport.doorbell import Located

LOOK_STEPS = 64  # how many events there are between two looks at the run


class VirtualRun(Replies):
    """One run in virtual time: it brings the events to the server's program, and is its replies.

    The arithmetic is done by `memory`, or in one that the program is given (`Program.begin`); with neither, only the time
    is asked for, of contributions of `push_nbytes` and answers of `answer_nbytes`. `look` is called between events, now and then;
    `on_round` with each version: it says who may be drawn. `limits`: the seconds, steps, samples or contributions after which the
    run ends. `incarnation` is that of the first processes.
    """

    def __init__(
        self,
        strategy: Strategy,
        cluster: Cluster,
        participants: Sequence[Participant],
        memory: Memory | None = None,
        *,
        push_nbytes: int = 0,
        answer_nbytes: int = 0,
        stealing: bool = False,
        silence_s: float = 300.0,
        limits: Mapping[str, float] = {},
        timeline: bool = True,
        recorder: Recorder | None = None,
        checkpointer: Checkpointer | None = None,
        incarnation: int = 1,
        raise_on_nonfinite: bool = False,
        look: Callable[[], None] | None = None,
        on_round: Callable[[RoundMade], tuple[int, ...] | None] | None = None,
    ) -> None:
        strategy.check_workers(cluster.workers)
        self.clock = VirtualClock()
        self.meter = Meter(cluster.workers, SPANS_MAX if timeline else 0)
        for one, away in zip(self.meter.workers, cluster.away, strict=True):
            one.away = away
        self.program = Program(
            strategy,
            Sequencer(
                strategy, cluster.workers, DataLeases(cluster.workers, stealing, lone=cluster.workers == 1), silence_s
            ),
            self,
            self.meter,
            recorder=recorder,
            checkpointer=checkpointer,
            tell=self._told,
            memory=memory,
            raise_on_nonfinite=raise_on_nonfinite,
            by_round=on_round is not None,
        )
        self.figures = Figures(self.program)
        self.incidents: list[Incident] = []
        self.ended = ""
        self.steps = self.samples = self.nbytes = 0
        self._push_nbytes, self._answer_nbytes = push_nbytes, answer_nbytes
        self._cluster = cluster
        self._network = network_of(strategy.via, cluster, self.clock)
        self._silence = Silence(self.clock, silence_s, self._ask_who_is_silent)
        self._limits = limits
        self._look, self._on_round = look, on_round
        self.after_each: Callable[[], None] | None = None  # event
        self._workers = [
            Process(one, self, self.meter.workers[index], index, incarnation - 1)
            for index, one in enumerate(participants)
        ]
        self._here = 0  # processes that the server has not seen the end of
        self._answered: list[tuple[int, Answer | Discard, Located, float]] = []  # until an event is dealt with
        self._to_rejoin: set[int] = set()  # workers back again, to be let in once their slot is free
        self._wake_s = self._planned_s = inf
        if limits.get("seconds", inf) < inf:
            self.clock.at(limits["seconds"], self.end, limit_reached("seconds", limits["seconds"]))

    # The loop

    def run(self) -> Final:
        """Run to the end; what it cost, in virtual seconds."""
        self.meter.begin(0.0)
        events = 0
        try:
            self._prepare()
            while not self.ended and self.clock.step():
                events += 1
                if self.after_each is not None:
                    self.after_each()
                if self._look is not None and events % LOOK_STEPS == 0:
                    self._look()
            self.ended = self.ended or "finished"
        finally:
            for worker in self._workers:
                if worker.state is State.HERE:
                    worker.participant.end()
        return self._final()

    def _prepare(self) -> None:
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

    def order(self, order: ToServer) -> None:
        """Have the run do what whoever watches it wants."""
        self.program.orders[type(order)](order, self.clock.now_s)
        self._settle()

    def end_at(self, time_s: float, why: str, worker: int) -> None:
        """End the run at `time_s`, if this process of `worker` is there until then."""
        self.clock.at(max(time_s, self.clock.now_s), self._end_for, (worker, self._workers[worker].incarnation, why))

    def _end_for(self, asked: tuple[int, int, str]) -> None:
        index, incarnation, why = asked
        worker = self._workers[index]
        if worker.incarnation == incarnation and worker.state is not State.ABSENT:
            self.end(why)

    def _final(self) -> Final:
        for index, worker in enumerate(self._workers):
            worker.cut_short(self._seat(index))
        final = self.figures.final(self.clock.now_s)
        final.bytes = self.nbytes
        return final

    def progress(self) -> Progress:
        """How the run stands; a step counts once its contribution has arrived."""
        told = self.figures.progress(self.clock.now_s)
        told.steps, told.samples, told.bytes = self.steps, self.samples, self.nbytes
        return told

    # Workers come and go

    def _turn(self, turn: Turn) -> None:
        worker = self._workers[turn.worker]
        if worker.state is State.HERE and not turn.alive:
            self._go(turn.worker, died=isinstance(turn, Crash))
        elif worker.state is State.ABSENT and turn.alive:
            self._come(turn.worker)
        self._end_if_over()

    def _come(self, index: int) -> None:
        """A process begins now, and the server hears of it when its message arrives."""
        self._begin(index)
        self.send(index, self.clock.now_s, 0, self._joined, index)

    def _begin(self, index: int) -> None:
        worker = self._workers[index]
        if worker.state is not State.HERE:
            self._here += 1
        worker = self._workers[index] = worker.successor()
        self.meter.workers[index].left = None
        worker.participant.begin(worker.incarnation)

    def _joined(self, index: int) -> None:
        worker = self._workers[index]
        if worker.state is not State.HERE or self.program.listening[index]:
            return  # it died on the way
        if self.program.sequencer.holds_slot_of(index):
            self._to_rejoin.add(index)
            return
        self.program.joined(index, worker.incarnation, self.clock.now_s)
        self._settle()

    def _go(self, index: int, died: bool) -> None:
        """A process ends now."""
        worker = self._workers[index]
        worker.stop(self._seat(index))
        worker.state = State.ABSENT
        self.program.over(index, died)
        self.send(index, self.clock.now_s, 0, self._left, Left(index, worker.incarnation, died))

    def _seat(self, index: int) -> Seat | None:
        """That of a worker that the server listens to."""
        return self.program.sequencer.members.seats.get(index) if self.program.listening[index] else None

    def _left(self, event: Left) -> None:
        self.program.left(event.worker, event.incarnation, event.died, self.clock.now_s, event.early)
        self._settle()
        self._here -= 1
        self._end_if_over()

    def _end_if_over(self) -> None:
        """Nobody is here, and nobody will come."""
        if self._here == 0 and not any(
            turn.alive and turn.at_s > self.clock.now_s and self._workers[turn.worker].state is State.ABSENT
            for turn in self._cluster.turns()
        ):
            self.end("finished")

    def _fenced(self, index: int, incarnation: int) -> None:
        """The server does not know this worker any more (it was evicted): it joins anew."""
        worker = self._workers[index]
        if worker.state is State.HERE and worker.incarnation == incarnation:
            worker.stop(self._seat(index))
            self._come(index)

    def _let_in(self) -> None:
        """Let in those who came back while their last contribution was not folded yet, and now is."""
        for index in sorted(self._to_rejoin):
            if not self.program.sequencer.holds_slot_of(index):
                self._to_rejoin.discard(index)
                self._joined(index)

    # What workers send

    def push_nbytes(self, index: int, made: Contribution) -> int:
        beside = self.program.nbytes(Contribution, index, made)
        return beside + (self.program.memory.push_bytes.get(made.beside.part) or self._push_nbytes)

    def ask_ahead(self, index: int, sent_s: float, need: Need) -> None:
        self._workers[index].ask_ahead(sent_s, need)

    def send(self, index: int, sent_s: float, nbytes: int, arrive: Callable[..., object], what: object) -> None:
        """Send something to the server; if that takes long, look out for those who wait for it."""
        self._silence.lasts_until(self._network.send(index, sent_s, nbytes, arrive, what))

    def _ask_who_is_silent(self) -> None:
        if self.program.sequencer.members.waiting:  # for the last ones left nobody need stop waiting: time is short
            self.receive(Ticked())

    def _end_grace(self, until_s: float) -> None:
        """A grace is over at `until_s`, unless everybody came before."""
        if self._wake_s == until_s:
            self.receive(Ticked())

    def arrived(self, message: Message) -> None:
        if message.void:
            return
        index, request, now_s = message.worker, message.request, self.clock.now_s
        if isinstance(request, Contribution):
            self.nbytes += self.push_nbytes(index, request)
            self.steps += request.steps
            self.samples += request.samples
            self.program.pushed(index, message.incarnation, request, now_s, message.ready_s)
            self._settle()
            if self._limits:
                steps, samples = self.program.before.steps + self.steps, self.program.before.samples + self.samples
                done = {"seconds": now_s, "steps": steps, "samples": samples, "contributions": self.meter.exchanges}
                self.end(limit_met(self._limits, done) or "")
        elif isinstance(request, Need):
            if not self.program.supplies[type(request)](index, message.incarnation, request, now_s):
                self._fenced(index, message.incarnation)
            self._settle()
        elif self._workers[index].incarnation == message.incarnation:
            self._workers[index].state = State.FINISHED
            early = self._workers[index].participant.leaves_early
            self.program.over(index, died=False, told=early)
            self._left(Left(index, message.incarnation, False, early))

    def receive(self, event: Event) -> None:
        self.program.receive(event, self.clock.now_s)
        self._settle()

    # What they are answered: they go on when the event is dealt with; whoever was evicted learns of it when it is heard again

    def now_s(self) -> float:
        """What the server does takes no time."""
        return self.clock.now_s

    def granted(self, grant: Grant, answer: Located) -> float:
        has_it_s = self._answer(grant.worker, grant.version, answer)
        self._answered.append((grant.worker, grant, answer, has_it_s))
        return has_it_s

    def called_off(self, cancel: Cancel, answer: Located) -> None:
        """A step is called off: void, unless it is on its way, or its worker waits for data, by the time this is heard."""
        worker = self._workers[cancel.worker]
        if worker.latest is None or worker.latest.request is None:
            return
        has_it_s = self._answer(cancel.worker, cancel.version, answer)
        worker.called_off = (cancel, answer, has_it_s)
        if isinstance(worker.latest.request, Contribution):
            self._answered.append((cancel.worker, cancel, answer, has_it_s))

    def round_ended(self, made: RoundMade) -> None:
        self.clock.at(self.clock.now_s, self._look_at, made)

    def _look_at(self, made: RoundMade) -> None:
        assert self._on_round is not None, "somebody looks at rounds"
        self.order(BeginRound(self._on_round(made)))

    def wake_at(self, time_s: float) -> None:
        self._wake_s = time_s

    def supplied(self, worker: int, reply: Supply) -> None:
        """It takes as long as a message with as many bytes; data has none."""
        nbytes = self.program.nbytes(type(reply), worker, self._workers[worker].asked_for(reply))
        self.nbytes += nbytes
        self._answered.append((worker, reply, NO_ANSWER, self._network.answer(worker, nbytes)))

    def refused(self, worker: int, why: str) -> None:
        raise ConfigurationError(why)

    def repeated(self, discard: Discard) -> None:
        """One that crossed its cancellation is counted; whoever was evicted learns of it now."""
        if discard.verdict is Verdict.FENCED:
            self.program.meter.workers[discard.worker].void()
            self._answered.append((discard.worker, discard, NO_ANSWER, self.clock.now_s))

    def _answer(self, index: int, version: int, told: Located) -> float:
        """When the parameters are with a worker; the first version is everywhere from the start."""
        if version == 0 and self.clock.now_s == 0.0:
            return 0.0
        part = told.answer.part if isinstance(told.answer, GoOn) else ALL_PARTS
        nbytes = self.program.memory.answer_bytes.get(part) or self._answer_nbytes
        self.nbytes += nbytes
        return self._network.answer(index, nbytes)

    def _settle(self) -> None:
        """An event is dealt with: those who were answered go on, in that order."""
        for index, answer, told, has_it_s in self._answered:
            if isinstance(answer, Discard):
                self._fenced(index, answer.incarnation)
            else:
                self._workers[index].hears(answer, told, has_it_s)
        self._answered.clear()
        if self._wake_s != self._planned_s:
            self._planned_s = self._wake_s
            if self._wake_s < inf:
                self.clock.at(self._wake_s, self._end_grace, self._wake_s)
        if self._to_rejoin:
            self._let_in()

    def _told(self, message: Trouble | Writing | StopRequest) -> None:
        if isinstance(message, StopRequest):
            self.end(message.why)
            return
        if isinstance(message, Writing):
            return
        self.incidents.append(message.incident)
        if message.fatal:
            raise (error_class(message.kind) or PlesioError)(message.fatal)
