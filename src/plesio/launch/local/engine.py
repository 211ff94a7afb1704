"""The engine for one host: starts a server, an evaluator and the workers, and sees that all of them end.

It is the user's own process and has no other thread; one loop polls every process's line. When something ends the run (all
workers are done, a target, a budget, an error, Ctrl-C), it asks the others to end, waits a moment and kills the rest.
"""

from __future__ import annotations

import logging
import select
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from math import inf

from msgspec.structs import replace

from plesio.config.evaluations import pause_s
from plesio.config.faults import Kill
from plesio.errors import DeadlineError, PlesioError, ServerLostError, WorkerError, WorkerLostError, error_class
from plesio.host.memory import SharedBlock, tables_at
from plesio.launch.ctrl_c import CtrlC, EndedBySignal, end_at_once
from plesio.launch.job import Job, Live, Outcome, Watch, phase_names
from plesio.launch.local.forkserver import ForkServer
from plesio.launch.local.patience import Patience
from plesio.launch.local.processes import EVALUATOR_TITLE, Process, Processes, descriptors_for
from plesio.launch.local.rebirths import Rebirths
from plesio.launch.local.seats import Seats
from plesio.launch.local.starting import IMPORTS, PREPARES, Starting
from plesio.launch.resume import resumable
from plesio.launch.returned import unpacked
from plesio.launch.rounds import OnRound, RoundCalls
from plesio.observe.summary import TOLD, Incident, Logged
from plesio.protocol import launcher, remote
from plesio.protocol.coding import ProtocolError, cut
from plesio.tables.file import from_memory, joined
from plesio.tables.module import Table
from plesio.tensors.arena import Layout
from plesio.tensors.model import load_structure
from plesio.transport.channel import ChannelClosedError, readable
from plesio.transport.limits import LEASE_S

log = logging.getLogger("plesio")
AT_ONCE = 100  # messages of one process that are taken before anything else is done
LINES_MAX = 100  # how many lines of a traceback are taken from a worker that somebody else started


class LocalEngine:
    """Runs one job on this host; `watch` is told how it stands, and may end it. Workers that somebody else starts knock at
    `sockets`. `say` is told what the start waits for."""

    def __init__(
        self,
        job: Job,
        watch: Watch,
        ctrl_c: CtrlC,
        sockets: Sequence[socket.socket] = (),
        on_round: OnRound | None = None,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self._job = job
        self._starting = Starting(job.config.workers, say)
        self._sockets = sockets
        self._watch = watch
        self._outcome = Outcome(by_count=pause_s(job.config.evaluations) == inf)
        self._live = Live(workers=job.config.workers, book=self._outcome.logged)
        self._rounds = RoundCalls(on_round, job, self._outcome, self._live) if on_round is not None else None
        self._error: PlesioError | None = None
        self._ctrl_c = ctrl_c
        self._patience = Patience(job.config.timeout_s, ctrl_c)
        self._rebirths = Rebirths()
        self._raised: dict[int, str] = {}  # workers that the others go on without, and what
        self._deaths: list[Incident] = []  # closed lines, to the server
        self._stopped: set[int] = set()  # did not end when asked to, and were killed for it
        self._kills = sorted((one for one in job.config.faults if isinstance(one, Kill)), key=lambda one: one.after_s)
        self._final_judged = job.evaluate is None
        self._poller = select.poll()
        self._by_descriptor: dict[int, Process] = {}

    def run(self) -> Outcome:
        """Start everything, wait until it is over, clean up; raises what ended it. A second Ctrl-C is a KeyboardInterrupt."""
        with descriptors_for(self._job.config.seats):
            fork_server = ForkServer.shared()
        self._processes = Processes(fork_server)
        self._seats = Seats(self._job, self._processes, self._listen)
        self._live.scaler = self._scale
        self._live.measurer = lambda window_s: self._processes.tell_server(launcher.Measure(window_s))
        if phases := phase_names(self._job.config.strategy):
            self._live.phases, self._live.switcher = phases, self._switch
        if self._job.keeping.folder:
            self._live.keeper = lambda: self._processes.tell_server(launcher.Keep())
        try:
            with descriptors_for(self._job.config.seats):
                # Ctrl-C ends it at once: it may take long, and there is nothing to lose yet
                with self._ctrl_c.telling(lambda: end_at_once(self._ctrl_c.number)):
                    self._processes.load(self._job, lambda: self._starting.waits_for(IMPORTS))
                self._processes.start(self._job, self._sockets)
            self._loop(fork_server)
        except EndedBySignal:
            if self._ctrl_c.pressed > 1:
                raise
        finally:
            told = self._seats.tell(self._error)
            try:
                self._processes.end(0.0 if self._error and not told else self._patience.left_s())
            except BaseException:  # a second Ctrl-C while they were given time
                self._processes.end(0.0)
                raise
        self._outcome.interrupted = self._ctrl_c.pressed > 0
        if self._error is not None and not self._outcome.interrupted:
            raise self._error
        if self._error is not None and self._patience.writing:  # the one thing that is waited for longer after Ctrl-C
            warnings.warn(str(self._error), RuntimeWarning, stacklevel=5)
        self._say_how_they_left()
        return self._outcome

    def _say_how_they_left(self) -> None:
        """Say it of workers that raised or were stopped: to the server, every closed line is a death."""
        outcome, raised = self._outcome, self._raised
        known = [one for one in self._deaths if one.worker in raised]
        outcome.incidents = [one for one in outcome.incidents if one not in known]
        if outcome.final is None:
            return
        why = {**dict.fromkeys(self._stopped, "stopped"), **dict.fromkeys(raised, "raised")}
        workers = tuple(
            replace(one, left=why.get(one.worker, one.left)) if one.left == "died" else one
            for one in outcome.final.workers
        )
        outcome.final = replace(outcome.final, workers=workers)
        for one in workers:
            if one.left == "stopped":
                what = f"worker {one.worker} did not end within {self._patience.grace} and was stopped: what it was at is lost"
                outcome.incidents.append(Incident(outcome.final.wall_s, one.worker, what))

    # While it runs

    def _loop(self, fork_server: ForkServer) -> None:
        poller = self._poller
        poller.register(fork_server.fileno(), select.POLLIN)  # first: its end causes that of the others
        for process in self._processes.all:
            self._listen(process)
        while not self._over():
            for descriptor, _ in poller.poll(50):
                sender = self._by_descriptor.get(descriptor)
                if sender is None:
                    poller.unregister(descriptor)
                    if self._outcome.final is None:
                        why = f"{fork_server.lost()}; the run ended with it {self._where()}; {self._what_is_left()}"
                        self._fail(ServerLostError(why))
                elif not self._hear_all(sender):
                    poller.unregister(descriptor)
                    if sender is not self._processes.server:  # which may still be written to
                        sender.channel.close()
            self._supervise()

    def _hear_all(self, sender: Process) -> bool:
        """Take what has come, up to an end: a user's `watch` looks in between, and may be slow. False: the line is closed."""
        for _ in range(AT_ONCE):
            if not readable(sender.channel.fileno(), 0.0):  # `_hear_out` may have read it
                break
            if not self._hear(sender):
                return False
        return True

    def _listen(self, process: Process) -> None:
        self._by_descriptor[process.channel.fileno()] = process
        self._poller.register(process.channel.fileno(), select.POLLIN)

    def _over(self) -> bool:
        """Whether nobody is waited for any more."""
        if self._error is not None:
            return True
        if self._ctrl_c.pressed:
            self._ask_to_stop("interrupted")
            if not self._patience.left_s():
                self._give_up_judging()
                return True
        return self._outcome.final is not None and (self._final_judged or self._give_up_judging())

    def _give_up_judging(self) -> bool:
        """End an evaluator that is not done with the last snapshot in time, and say so; whether it was."""
        final, why = self._outcome.final, self._patience.evaluation_is_late()
        if self._final_judged or not why:
            return False
        self._processes.evaluator.kill()
        if final is not None and final.model is not None:
            what = f"the last evaluation, of version {final.version}, was given up: {why}"
            self._happened(None, what, final.wall_s)
        return True

    def _hear(self, process: Process) -> bool:
        """Take one message; False when the line is closed."""
        try:
            heard = process.channel.hear(self._job.config.timeout_s)
        except ChannelClosedError:
            self._hung_up(process)
            return False
        except (ProtocolError, DeadlineError) as error:
            if self._job.listening is None or process is self._processes.server:
                raise
            self._happened(process.worker, f"{error}: hung up on")
            self._hung_up(process)
            return False
        if heard is None:
            return True
        message, descriptors = heard
        if process is self._processes.server:
            self._patience.heard_s = time.monotonic()
        elif self._job.listening is not None:  # it may be anybody who knows the token
            lines = message.traceback.splitlines()[-LINES_MAX:] if isinstance(message, launcher.Failed) else []
            message = cut(message)
            if isinstance(message, launcher.Failed):
                message = replace(message, traceback="\n".join(cut(lines)))
        match message:
            case launcher.Begun():
                self._patience.begun_s = time.monotonic()
                self._outcome.begun_s = self._patience.begun_s
                self._live.time_s = 0.0
                for one in self._processes.workers:
                    one.began_s = 0.0 if self._job.listening is None else None
                self._seats.begun = True
                log.info("training began")
            case launcher.Reborn():
                self._reborn(message)
            case launcher.Progress():
                self._live.workers = self._seats.workers
                self._live.stands(message)
            case launcher.Lately():
                self._live.lately = message
            case launcher.RoundMade():
                self._hear_out(self._processes.workers)
                self._look_at(message, descriptors)
            case launcher.LoggedByWorker(time_s, steps, metrics):
                if self._rounds is not None and process.worker is not None:
                    self._rounds.logged(process.worker, metrics)
                if self._patience.begun_s is not None and process.worker is not None:
                    if process.began_s is None:  # it came late: what it logged first, it logged just now
                        process.began_s = time.monotonic() - self._patience.begun_s - time_s
                    self._outcome.logged.add(Logged(process.began_s + time_s, process.worker, steps, metrics))
            case launcher.Visited(visits, early):
                if not early:
                    self._outcome.clients.add(visits)
                elif self._rounds is not None and process.worker is not None:
                    self._rounds.told(process.worker, visits)
            case launcher.Evaluated():
                self._outcome.judged(message.evaluation, message.raised, self._live)
                self._patience.judged_s = time.monotonic()
                self._final_judged = self._final_judged or message.final
            case launcher.Writing(under_way):
                self._patience.writes(under_way)
                if under_way:
                    self._live.events.append(Incident(self._live.time_s, None, "a checkpoint is being written"))
            case launcher.StopRequest(why):
                self._ask_to_stop(why)
            case launcher.Trouble():
                self._happened(message.incident.worker, message.incident.what, message.incident.time_s)
                if message.died:
                    self._deaths.append(message.incident)
                if message.fatal and message.kind == "ServerLostError":
                    self._lose(message.fatal)
                elif message.fatal:
                    self._fail((error_class(message.kind) or PlesioError)(message.fatal))
            case launcher.Returned(value):
                assert process.worker is not None, "only a worker trains"
                number = process.rank if self._job.config.strategy.every.among_ranks else process.worker
                self._outcome.returned[number] = unpacked(value, number)
            case launcher.Finished():
                process.done = True
                self._seats.has_finished(process)
            case launcher.Arrived():
                self._seats.arrived(message, descriptors)
            case launcher.TurnedAway(address, why):
                self._happened(None, f"{address} knocked and was turned away: {why}")
            case remote.Knock():
                self._seats.knocked(process, message)
            case remote.Away(is_away):
                self._seats.away(process, is_away)
            case remote.SeatRefused(_, why):
                self._happened(process.worker, f"{process.title} was hung up on: {why}")
            case launcher.Failed():
                process.done = True
                self._failed(process, message)
            case launcher.Final():
                self._hear_out(self._processes.workers)
                self._final(message, descriptors)
        return True

    def _look_at(self, made: launcher.RoundMade, descriptors: list[int]) -> None:
        """Have the user look at this version, and let the next round begin. After Ctrl-C nobody looks."""
        assert self._rounds is not None and made.model is not None, "somebody looks at rounds"
        model, layout = made.model, Layout(made.model.specs)
        block = SharedBlock(descriptors[0], made.lies.nbytes)
        kept = [view.clone() for view in made.lies.of(block.memory, layout).views]
        block.close()
        chosen = None
        if not self._ctrl_c.pressed:
            weights = {name: kept[index] for name, index in model.names}
            own = made.structure if not model.tables else b""
            round = self._rounds.look(
                made, weights, lambda: load_structure(own, layout.specs, tuple(kept)) if own else None
            )
            chosen = round.chosen
            if why := round.stopped or self._watch(self._live):  # before the next round begins
                self._ask_to_stop(why)
            self._patience.heard_s = time.monotonic()  # nobody was heard meanwhile
        self._processes.tell_server(launcher.BeginRound(chosen))

    def _reborn(self, reborn: launcher.Reborn) -> None:
        """The server has died. Its spare goes on, and says when it does; if that is in vain, the run ends."""
        server = self._processes.server
        died, server.pid = server.pid, reborn.pid
        if why := self._rebirths.why_not(reborn.generation, reborn.turn, time.monotonic()):
            self._lose(f"the server process ({died}) died {self._where()}, and is not replaced: {why}")

    def _hear_out(self, processes: Sequence[Process]) -> None:
        """Read what they sent before the server's last message: it may say why the run ended, or what they raised."""
        for process in processes:
            while not process.gone and readable(process.channel.fileno(), 0.0) and self._hear(process):
                pass

    def _failed(self, process: Process, message: launcher.Failed) -> None:
        """Plesio's own errors keep their class; anything else is the user's. After a stop it costs nobody the run."""
        worker, what = process.worker, f"{process.title} raised {message.kind}: {message.why}"
        if worker is None:
            self._fail(PlesioError(f"{process.title} raised {message.kind}:\n{message.traceback}"))
        elif message.own and message.kind == "ServerLostError":
            pass  # the server's own end is told once
        elif worker in self._raised:
            pass  # another rank of its island did
        elif self._patience.begun_s is not None and (self._stopping or self._goes_on):
            self._end_island(process)
            alone = self._stopping or all(one.done for one in self._processes.workers if one.worker != worker)
            others = "" if alone else "; the others go on"
            self._happened(worker, what + others)
            self._raised[worker] = what
        else:
            kind = error_class(message.kind) if message.own else None
            error = kind(message.why) if kind is not None else WorkerError(f"{what}\n{message.traceback}")
            if kind is not None:
                error.add_note(f"\n{message.traceback.rstrip()}")  # where in the user's function
            self._fail(error)

    @property
    def _goes_on(self) -> bool:
        """Whether the run does without a worker that raised: not one whose processes all-reduce."""
        config = self._job.config
        return config.on_worker_error == "continue" and not config.strategy.every.among_ranks

    @property
    def _stopping(self) -> bool:
        return self._patience.asked or self._ctrl_c.pressed > 0

    def _hung_up(self, process: Process) -> None:
        if process in self._processes.table_servers and self._outcome.final is None and not process.done:
            joined = process in self._seats.table_servers
            how = "was lost" if joined else f"({process.pid}) died"
            self._lose(f"{process.title} {how} {self._where()}")
        elif process is self._processes.server and self._outcome.final is None:
            self._hear_out(self._processes.table_servers)
            died = f"the server process ({process.pid}) died {self._where()}"
            config = self._job.config
            told = config.durability == "process" or config.why_not_durable
            spare = "" if told else "; with durability='process' a spare goes on, or the run says why none can"
            self._lose(died, f"; its own messages, if it left any, are above{spare}")
        elif process.title == EVALUATOR_TITLE:
            if not self._final_judged and not process.done:
                self._happened(None, "the evaluator died: nothing is evaluated from here on, and no target is noticed")
            self._final_judged = True
        if not process.done:
            self._end_island(process)
        process.done = process.gone = True

    def _end_island(self, process: Process) -> None:
        """Its other processes cannot go on without this one."""
        if process.worker is None or process.replaced:
            return
        for one in self._processes.island(process.worker):
            if one.rank != process.rank and not (one.gone or one.done):
                log.info("%s has ended, and %s with it", process.title, one.title)
                self._kill(one)
        if not self._stopping and self._error is None and self._seats.begin_anew(process.worker, self._live.version):
            self._happened(
                process.rank, f"worker {process.rank} died {self._where()}: all begin anew from what was shown last"
            )

    def _kill(self, process: Process) -> None:
        """End a worker's process, or hang up on one that somebody else started."""
        process.kill()
        if not process.ours and process.worker is not None and process.rank == 0:
            self._processes.tell_server(launcher.Emptied(process.worker))

    def _lose(self, what: str, more: str = "") -> None:
        """A server is lost, and what it held: say what is left."""
        self._lose_to(ServerLostError, f"{what}; {self._what_is_left()}{more}")

    def _lose_to(self, kind: type[PlesioError], what: str) -> None:
        error = kind(what)
        error.resume = resumable(self._job)
        self._fail(error)

    def _happened(self, worker: int | None, what: str, time_s: float | None = None) -> None:
        """Keep it for the summary, and tell whoever listens while the run goes on. Others' words may be in it."""
        what = cut(what)
        incident = Incident(self._live.time_s if time_s is None else time_s, worker, what)
        self._outcome.incidents.append(incident)
        self._live.events.append(incident)
        log.info("%s", what)

    def _fail(self, error: PlesioError) -> None:
        """Keep the first error: the others are its consequences."""
        self._error = self._error or error

    def _where(self) -> str:
        return f"at version {self._live.version}, {max(self._live.time_s, 0.0):.1f} s into training"

    def _what_is_left(self) -> str:
        """What is left of a run whose server is lost."""
        config, folder = self._job.config, self._job.keeping.folder
        if not config.strategy.via.at_server:
            how = "worker 0's training function can save the model"
            return f"the weights are lost ({config.strategy.name} keeps no checkpoints; {how})"
        if (place := resumable(self._job)) is not None:
            return f"go on from the last checkpoint with resume={str(place)!r}"
        why = "checkpoint=ps.Checkpoint(...), --checkpoint-every-s on the command line, would have kept them"
        if folder:
            why = f"there is no checkpoint in {folder!r} yet"
        return f"the weights were in its memory and are lost ({why})"

    def _supervise(self) -> None:
        """Do what is due: faults, targets, and the end of a server that is silent and of workers that were asked to end."""
        processes, patience = self._processes, self._patience
        workers_left = not all(process.gone for process in processes.workers)
        server = processes.server.pid
        if self._job.config.is_durable and self._outcome.final is None and patience.server_hangs(server):
            at = ", and gets no further with a checkpoint" if patience.writing else ""
            what = f"the server ({server}) has said nothing for {self._job.config.timeout_s:g} s{at}: killed"
            self._happened(None, what)
            processes.server.kill()
        silence_s = patience.silence_s(workers_left)
        if silence_s is not None and self._outcome.final is None:
            self._give_up_on_server(silence_s, workers_left)
        if self._job.listening is not None and patience.server_fell_silent(LEASE_S):
            self._happened(
                None, f"the server has said nothing for {LEASE_S:g} s: it is stopped, or hangs; the workers wait"
            )
        if patience.begun_s is not None:
            while self._kills and time.monotonic() - patience.begun_s >= self._kills[0].after_s:
                worker = self._kills.pop(0).worker
                killed = processes.server if worker is None else processes.numbered(worker)
                if killed is not None:
                    self._rebirths.expected += killed is processes.server
                    killed.kill()
            reason = self._watch(self._live)
            if reason is not None:
                self._ask_to_stop(reason)
        elif self._job.listening is None:
            self._starting.waits_for(PREPARES)
        if not self._stopping and self._outcome.final is None:
            self._seats.fill()
        if patience.workers_are_late():
            for process in processes.workers:
                if not process.done and process.worker is not None and process.worker not in self._stopped:
                    self._stopped.add(process.worker)
                    self._kill(process)

    def _scale(self, workers: int) -> None:
        """Whoever watches the run wants so many workers; a run that ends keeps those it has."""
        self._seats.check(workers)
        if not self._stopping and self._outcome.final is None:
            self._seats.scale(workers)
            self._live.workers = self._seats.workers

    def _switch(self, phase: int, why: str) -> None:
        """Whoever watches the run wants it in this phase; one that ends stays as it is."""
        if not self._stopping and self._outcome.final is None:
            self._processes.tell_server(launcher.SwitchRequest(phase, why))

    def _give_up_on_server(self, silence_s: float, workers_left: bool) -> None:
        why = "it was stopped, or hangs"
        if self._patience.writing:
            why = f"it is writing a checkpoint into {self._job.keeping.folder!r} and does not get done"
        who = f"the server process ({self._processes.server.pid}) said nothing for {silence_s:g} s {self._where()}"
        all_gone = "" if workers_left else ", though every worker had ended"
        what = f"{who}{all_gone}: {why} (timeout_s={self._job.config.timeout_s:g})"
        self._lose_to(DeadlineError, f"{what}; {self._what_is_left()}")

    def _ask_to_stop(self, reason: str) -> None:
        """The first reason counts."""
        if self._patience.asked:
            return
        self._patience.ask()
        self._outcome.ended = reason
        self._processes.tell_server(launcher.Stop())

    def _final(self, message: launcher.Final, descriptors: list[int]) -> None:
        self._patience.judged_s = time.monotonic()
        self._outcome.final = message
        self._live.stands(message)
        left = {one.left for one in message.workers}
        all_died = "died" in left and left <= {"died", TOLD}
        if message.model is None:
            if all_died:
                self._fail(WorkerLostError(f"training did not begin: all {len(message.workers)} workers died before"))
            elif self._job.listening is not None and not self._stopping:
                how = ", ".join(f"worker {one.worker} {one.left or 'did not come'}" for one in message.workers)
                self._fail(WorkerLostError(f"training did not begin: {how}; start the head and its workers again"))
            return
        layout = Layout(message.model.specs)
        block = SharedBlock(descriptors[0], message.lies.nbytes)
        kept = [view.clone() for view in message.lies.of(block.memory, layout).views]
        self._outcome.state_dict = {name: kept[index] for name, index in message.model.names}
        self._outcome.state_dict |= {name: one.clone() for name, one in tables_at(message.model.tables).items()}
        block.close()
        if len(descriptors) > 1:
            rows = joined([from_memory(one) for one in descriptors[1:]])
            self._outcome.tables = {one.name: Table.of(one, rows[one.name]) for one in message.tables}
        if all_died and not self._patience.asked:
            raised = next((f"; {what}" for what in self._raised.values()), "")
            last = f"the last at version {message.version}, {message.wall_s:.1f} s into training"
            go_on = f"; {self._what_is_left()}" if resumable(self._job) is not None else ""
            self._lose_to(WorkerLostError, f"every worker died; {last}{raised}{go_on}")
