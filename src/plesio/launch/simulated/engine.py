"""`ps.Simulated(cluster)`: the user's unmodified training function on simulated machines.

Gradients are real, computed one worker after the other in this process; only time is virtual. Everything is seeded and
exact: two runs give the same journal and the same weights, byte for byte.

What is not simulated: under `allreduce` and `hogwild` the arithmetic is a server's (the mean of all gradients; one
gradient after the other, never torn, by one optimizer whose momentum is everybody's: at large rates that diverges where
`hogwild`'s own, one for each worker, do not), and so are the bytes: a contribution and the parameters for each exchange, as
everywhere. Only the times are those of a ring and of shared memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from math import inf

from plesio.cluster import Cluster
from plesio.config.evaluations import Due, pause_s
from plesio.errors import WorkerLostError
from plesio.launch.ctrl_c import CtrlC
from plesio.launch.job import Job, Live, Outcome
from plesio.launch.journal import begun
from plesio.launch.one_process.greenlets import GreenletWorker, Peek, StillTimer, Watcher
from plesio.launch.one_process.own_copies import own_copies
from plesio.launch.one_process.seating import Seating, apart
from plesio.launch.one_process.wall_clock import no_wall_clock
from plesio.launch.returned import packed, unpacked
from plesio.launch.rounds import OnRound, RoundCalls
from plesio.launch.simulated.lately import choose_in
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import Answer, Participant, Request
from plesio.launch.watching import Watching
from plesio.observe.clients import Visit
from plesio.observe.summary import ALL_LEFT, TOLD, Evaluation, Incident
from plesio.observe.summary import Logged as LoggedMean
from plesio.protocol.journal import JournalWriter
from plesio.protocol.launcher import RoundMade
from plesio.protocol.worker import Contribution, Need, Supply
from plesio.server.checkpointer import Checkpointer
from plesio.server.judge import Judge
from plesio.server.recording import Recorder
from plesio.strategy.answers import Server
from plesio.transport.doorbell import Located

THREADS = 1  # the same bits on every machine, and steps as small as a simulation's are fastest so


class VirtualTimer(StillTimer):
    """A worker's own time: a step that begins at some time lets as many seconds pass as `step_s` says."""

    paces = True

    def __init__(self, step_s: Callable[[float], float]) -> None:
        self._own_step_s = step_s
        self._step_s = 0.0  # if it is another's than this worker's

    def rest(self, sleep: Callable[[float], object]) -> None:
        self.time_s += self.part * (self._step_s or self._own_step_s(self.time_s))

    def takes(self, step_s: float) -> None:
        self._step_s = step_s

    def waits(self, seconds: float) -> None:
        self.time_s += seconds


class SimulatedEngine:
    """Runs a job on a cluster, in virtual time; `watch` is told how it stands at each evaluation, and may end it."""

    def __init__(
        self, job: Job, cluster: Cluster, watch: Watching, ctrl_c: CtrlC, on_round: OnRound | None = None
    ) -> None:
        self.job = job
        self.outcome = Outcome(by_count=pause_s(job.config.evaluations) == inf)
        self.raised: dict[int, str] = {}  # workers whose training function did, and what, where the others go on
        self._watch = watch
        self._happened = 0  # incidents that were passed on
        self._ctrl_c = ctrl_c
        self._judgement = Judge(job.evaluate) if job.evaluate is not None else None
        self.live = Live.of(job.config, self.outcome.logged, 0.0)
        self.rounds = RoundCalls(on_round, job, self.outcome, self.live) if on_round is not None else None
        self._strategy = dataclasses.replace(job.config.strategy, via=Server())
        self._train = own_copies(job.function, job.config.workers)
        self.checkpointer = Checkpointer(job.keeping, job.config.strategy, job.config.workers, counts=True)
        self._recorder = Recorder(begun(job, THREADS)) if job.keeping.journal else None
        steps = [one.step_s for one in cluster.timetables(job.config.seeded)]
        self.run_of = VirtualRun(
            job.config.strategy,
            cluster,
            [_Participant(self, number, *own) for number, own in enumerate(zip(steps, cluster.away, strict=True))],
            stealing=job.config.stealing,
            silence_s=job.config.timeout_s,
            limits=job.config.until.limits,
            recorder=self._recorder,
            checkpointer=self.checkpointer,
            incarnation=job.incarnation,
            raise_on_nonfinite=job.config.on_nonfinite == "raise",
            look=self._look,
            on_round=self._look_at if on_round is not None else None,
        )
        self._due = Due(job.config.evaluations)
        if job.evaluate is not None:
            self.run_of.clock.repeat(0.0, pause_s(job.config.evaluations), self._evaluate)
            if self.outcome.by_count:
                self.run_of.after_each = lambda: self._evaluate(self.run_of.clock.now_s)
        if self.checkpointer.writes:
            self.run_of.clock.repeat(job.keeping.every_s, job.keeping.every_s, self.run_of.program.keep)
            self.live.keeper = lambda: self.run_of.program.keep(self.run_of.clock.now_s)
        self.live.order = lambda order: self.run_of.order(order)
        holds = self.checkpointer.holds or bool(cluster.turns())
        if job.config.strategy.chooses is not None:
            choose_in(self.run_of, job.config.strategy)
        self._seating = Seating(self._strategy, self.run_of.program, holds, job.config.servers)

    def run(self) -> Outcome:
        with closing(self), apart(THREADS):
            return self._run()

    def close(self) -> None:
        """Its memory goes now, not when somebody looks for cycles."""
        self._seating.close()
        del self.run_of, self._seating  # participants lead back here
        if self._recorder is not None:
            self._recorder.keep(JournalWriter.close)

    def _run(self) -> Outcome:
        outcome, program = self.outcome, self.run_of.program
        with no_wall_clock(), self._ctrl_c.telling(lambda: self.run_of.end("interrupted")):
            final = outcome.final = self.run_of.run()
        live = self._stands()
        live.time_s, live.now = final.wall_s, final.now
        self._watch.look(live)  # a short run was never looked at
        outcome.ended, outcome.interrupted = self.run_of.ended, self._ctrl_c.pressed > 0
        if outcome.ended == "finished" and {one.left for one in final.workers} == {TOLD}:
            outcome.ended = ALL_LEFT
        if len(self.raised) == self.job.config.workers:
            raise WorkerLostError(f"every worker raised; the last: {list(self.raised.values())[-1]}")
        if program.unsettled:  # nobody comes to the end of that, and what came is to count once
            for seat in list(program.sequencer.members.seats.values()):
                program.left(seat.worker, seat.incarnation, False, final.wall_s)
        program.close(final.wall_s)
        outcome.incidents += self.run_of.incidents
        if not program.begun:
            return outcome
        if self.job.evaluate is not None and not outcome.interrupted:
            self._judge(final.wall_s)
        outcome.hands_over(*self._seating.handed_over())
        return outcome

    def new_worker(self, number: int, watcher: _Participant) -> GreenletWorker:
        return GreenletWorker(
            self._train(), self._strategy, number, self.job.config.workers, self.job.config.seeded, watcher,
            shows=self.job.evaluate is not None or self.job.by_round, lenient=self.job.config.on_worker_error == "continue",
            lone=self.job.config.seats == 1, sources=self.job.sources, stealing=self.job.config.stealing,
            plain=self.job.model,
        )  # fmt: skip

    def seat(self, worker: GreenletWorker) -> None:
        seated = self._seating.seat(worker, self.run_of.clock.now_s)
        if not seated and worker.error is not None and self.job.config.on_worker_error == "raise":
            raise worker.error

    def _evaluate(self, now_s: float) -> None:
        if not self.run_of.program.begun:
            return  # nobody has joined yet: there is no model
        program = self.run_of.program
        if not self._due(program.version, program.before.steps + self.run_of.steps):
            return
        self._judge(now_s)
        self.run_of.end(self._watch(self._stands()) or "")

    def _stands(self) -> Live:
        """How the run stands now."""
        run, live = self.run_of, self.live
        live.stands(run.progress())
        live.events += run.incidents[self._happened :]
        self._happened = len(run.incidents)
        return live

    def _look(self) -> None:
        """Between two evaluations all are told but the user's `watch`, which is called at times that are the same again."""
        if self._watch.due:
            self.run_of.end(self._watch.look(self._stands()) or "")

    def _look_at(self, made: RoundMade) -> tuple[int, ...] | None:
        assert self.rounds is not None, "somebody looks at rounds"
        self.run_of.program.is_finite()
        round = self.rounds.look(made, self._seating.state_dict, self._seating.model)
        self.run_of.end(round.stopped or self._watch.reached(self._stands()) or "")
        return round.chosen

    def _judge(self, now_s: float) -> None:
        assert self._judgement is not None
        program = self.run_of.program
        program.is_finite()
        metrics = self._judgement(self._seating.model())
        samples = program.before.samples + self.run_of.samples
        self.outcome.judged(Evaluation(now_s, program.version, samples, metrics), self._judgement.raised, self.live)


class _Participant(Watcher, Participant):
    """A worker of the user's training function, as the virtual run sees it.

    Work is done at once: by the time a step is called off it is complete, and void.
    """

    def __init__(self, engine: SimulatedEngine, number: int, step_s: Callable[[float], float], away: bool) -> None:
        self.timer = VirtualTimer(step_s)
        self.away = away
        self._engine = engine
        self._number = number
        self._worker: GreenletWorker | None = None

    def begin(self, incarnation: int) -> None:
        self._worker = self._engine.new_worker(self._number, self)
        self._worker.by_round = self._engine.job.by_round
        self._engine.seat(self._worker)

    def go_on(self, answer: Answer, told: Located, now_s: float) -> tuple[float, Request]:
        assert self._worker is not None, "it began"
        self.timer.time_s = now_s
        request = self._worker.resume(answer if isinstance(answer, Supply | bool) else told)
        asks = Contribution | Need | Peek | None
        assert isinstance(request, asks), "a step is called off by its answer"
        if request is None:
            self._finished()
        return self.timer.time_s, request

    def end(self) -> None:
        if self._worker is not None:
            self.timer.time_s = min(self.timer.time_s, self._engine.run_of.clock.now_s)  # it was ahead, by a step
            self._worker.kill()
            self._worker = None

    def ask_ahead(self, need: Need, due: bool = True) -> bool:
        if due:
            self._engine.run_of.ask_ahead(self._number, self.timer.time_s, need)
        return due

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        self._engine.outcome.logged.add(LoggedMean(self.timer.time_s, self._number, steps, metrics))
        if self._engine.rounds is not None:
            self._engine.rounds.logged(self._number, metrics)

    def visited(self, visits: tuple[Visit, ...], early: bool = False) -> None:
        if not early:
            self._engine.outcome.visited(visits)
        elif self._engine.rounds is not None:
            self._engine.rounds.told(self._number, visits)

    def counted(self, samples: int) -> None:
        run = self._engine.run_of
        run.samples += samples
        run.meter.workers[self._number].samples += samples

    def stop(self, why: str) -> None:
        """The run ends when this worker's time is everybody's."""
        self._engine.run_of.end_at(self.timer.time_s, why, self._number)

    def _finished(self) -> None:
        assert self._worker is not None
        error, self.leaves_early = self._worker.error, self._worker.state.early
        value = packed(self._worker.returned, self._number)
        self._engine.outcome.returned[self._number] = unpacked(value, self._number)
        if error is not None and self._engine.job.config.on_worker_error == "raise":
            raise error
        self._worker = None
        if error is None:
            return
        what = str(error).splitlines()[0]
        self._engine.raised[self._number] = what
        self._engine.outcome.incidents.append(Incident(self.timer.time_s, self._number, f"{what}; the others go on"))
