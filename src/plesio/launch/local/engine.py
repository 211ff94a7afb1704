"""The engine for one host: starts a server, an evaluator and the workers, and sees that all of them end.

It is the user's own process and has no other thread; one loop polls every process's line. When something ends the run (all
workers are done, a target, a budget, an error, Ctrl-C), it asks the others to end, waits a moment and kills the rest.
"""

from __future__ import annotations

import logging
import select
import signal
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from math import inf

from msgspec.structs import replace

from plesio.config.evaluations import pause_s
from plesio.config.faults import Kill
from plesio.errors import DeadlineError, ServerLostError
from plesio.launch.ctrl_c import CtrlC, EndedBySignal
from plesio.launch.job import Job, Live, Outcome, Watch
from plesio.launch.local.forkserver import ForkServer
from plesio.launch.local.handed_over import copied, handed_over
from plesio.launch.local.losses import Losses
from plesio.launch.local.patience import Patience
from plesio.launch.local.processes import Process, Processes, descriptors_for
from plesio.launch.local.seats import Seats
from plesio.launch.local.starting import IMPORTS, PREPARES, Starting
from plesio.launch.returned import unpacked
from plesio.launch.rounds import OnRound, RoundCalls
from plesio.observe.summary import Incident, Logged
from plesio.protocol import launcher, reading, remote
from plesio.protocol.coding import ProtocolError, cut
from plesio.tensors.arena import Layout
from plesio.tensors.model import load_structure
from plesio.transport.channel import ChannelClosedError, readable
from plesio.transport.limits import LEASE_S

log = logging.getLogger("plesio")
AT_ONCE = 100  # messages of one process that are taken before anything else is done
LINES_MAX = 100  # how many lines of a traceback are taken from a worker that somebody else started


class LocalEngine:
    """Runs one job on this host; `watch` is told how it stands, and may end it. Workers that somebody else starts knock at
    `sockets`, those who only read it at `readers`. `say` is told what the start waits for."""

    def __init__(
        self,
        job: Job,
        watch: Watch,
        ctrl_c: CtrlC,
        sockets: Sequence[socket.socket] = (),
        on_round: OnRound | None = None,
        say: Callable[[str], None] = log.info,
        readers: Sequence[socket.socket] = (),
    ) -> None:
        self._job = job
        self._starting = Starting(job.config.workers, say)
        self._sockets, self._readers = sockets, readers
        self._watch = watch
        self._outcome = Outcome(by_count=pause_s(job.config.evaluations) == inf)
        self._live = Live.of(job.config, self._outcome.logged)
        self._rounds = RoundCalls(on_round, job, self._outcome, self._live) if on_round is not None else None
        self._ctrl_c = ctrl_c
        self._patience = Patience(job.config.timeout_s, ctrl_c)
        self._kills = sorted((one for one in job.config.faults if isinstance(one, Kill)), key=lambda one: one.after_s)
        self._poller = select.poll()
        self._by_descriptor: dict[int, Process] = {}
        self._standing_by = 0  # how many standbys could go on

    def run(self) -> Outcome:
        """Start everything, wait until it is over, clean up; raises what ended it. A second Ctrl-C is a KeyboardInterrupt."""
        with descriptors_for(self._job.config.seats):
            self._processes = Processes(ForkServer.shared())
        self._seats = Seats(self._job, self._processes, self._listen)
        self._losses = Losses(
            self._job, self._outcome, self._live, self._processes, self._seats, self._patience, self._hear_out
        )
        self._live.scaler = self._scale
        self._live.measurer = lambda window_s: self._processes.tell_server(launcher.Measure(window_s))
        self._live.order = self._order
        if self._job.keeping.folder:
            self._live.keeper = lambda: self._processes.tell_server(launcher.Keep())
        try:
            with descriptors_for(self._job.config.seats):
                with self._ctrl_c.at_once():  # it may take long
                    self._processes.load(self._job, lambda: self._starting.waits_for(IMPORTS))
                self._processes.start(self._job, self._sockets, self._readers)
            self._loop()
        except EndedBySignal:
            if self._ctrl_c.pressed > 1:
                raise
        finally:
            error = self._losses.error
            told = self._seats.tell(error)
            if not isinstance(error, ServerLostError):  # then a standby goes on
                self._processes.tell_standbys(launcher.Ended())
            try:
                self._processes.end(0.0 if error and not told else self._patience.left_s())
            except BaseException:  # a second Ctrl-C while they were given time
                self._processes.end(0.0)
                raise
        self._outcome.interrupted = self._ctrl_c.pressed > 0
        if self._patience.begun_s is None:
            self._outcome.starting = self._start_in_words
        if error is not None and not self._outcome.interrupted:
            raise error
        if error is not None and self._patience.writing:  # the one thing that is waited for longer after Ctrl-C
            warnings.warn(str(error), RuntimeWarning, stacklevel=5)
        self._losses.say_how_they_left()
        return self._outcome

    @property
    def _start_in_words(self) -> str:
        """What it was at before training began."""
        if self._job.listening is None:
            return self._starting.words
        came = len({one.worker for one in self._processes.workers if not one.gone})
        return f"waiting for workers: {came} of {self._job.config.workers} were there"

    # While it runs

    def _loop(self) -> None:
        poller = self._poller
        poller.register(self._processes.fork_server.fileno(), select.POLLIN)
        for process in self._processes.all:
            self._listen(process)
        while not self._over():
            for descriptor, _ in poller.poll(50):
                sender = self._by_descriptor.get(descriptor)
                if sender is None:
                    poller.unregister(descriptor)
                    self._lose_fork_server()
                elif not self._hear_all(sender):
                    poller.unregister(descriptor)
                    if sender is not self._processes.server:  # which may still be written to
                        sender.channel.close()
            self._supervise()

    def _lose_fork_server(self) -> None:
        if self._outcome.final is None and self._losses.error is None:
            where, left = self._losses.where, self._losses.what_is_left
            self._losses.fail(
                ServerLostError(f"{self._processes.fork_server.lost()}; the run ended with it {where}; {left}")
            )

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
        if self._losses.error is not None:
            return True
        if self._ctrl_c.pressed and self._ctrl_c.number == signal.SIGTERM and self._standing_by:
            what = "this head is told to end (SIGTERM): a standby goes on with the run"
            self._losses.happened(None, what)
            self._losses.fail(ServerLostError(what))
            return True
        if self._ctrl_c.pressed:
            self._ask_to_stop("interrupted")
            if not self._patience.left_s():
                self._give_up_judging()
                return True
        return self._outcome.final is not None and (self._is_judged or self._give_up_judging())

    @property
    def _is_judged(self) -> bool:
        """Whether nobody is waited for who evaluates the last version, here or elsewhere."""
        final = self._outcome.final
        elsewhere = [one.judged for one in self._live.readers if one.judged is not None]
        return self._losses.is_judged and (final is None or all(judged >= final.version for judged in elsewhere))

    def _give_up_judging(self) -> bool:
        """End an evaluator that is not done with the last snapshot in time, and say so; whether it was."""
        final, why = self._outcome.final, self._patience.evaluation_is_late()
        if self._is_judged or not why:
            return False
        if not self._losses.is_judged:
            self._processes.evaluator.kill()
        if final is not None and final.model is not None:
            what = f"the last evaluation, of version {final.version}, was given up: {why}"
            self._losses.happened(None, what, final.wall_s)
        return True

    def _hear(self, process: Process) -> bool:
        """Take one message; False when the line is closed."""
        try:
            heard = process.channel.hear(self._job.config.timeout_s)
        except ChannelClosedError:
            if self._processes.fork_server.has_ended:  # which ends all others
                self._lose_fork_server()
            self._losses.hung_up(process)
            return False
        except (ProtocolError, DeadlineError) as error:
            if self._job.listening is None or process is self._processes.server:
                raise
            self._losses.happened(process.worker, f"{error}: hung up on")
            self._losses.hung_up(process)
            return False
        if heard is None:
            return True
        if process is self._processes.server:
            self._patience.heard_s = time.monotonic()
            self._of_server(*heard)
        else:
            self._of_others(process, *heard)
        return True

    def _of_server(self, message: object, descriptors: list[int]) -> None:
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
                self._losses.reborn(message)
            case launcher.Progress():
                self._live.workers = self._seats.workers
                self._live.stands(message)
            case launcher.Lately():
                self._live.lately = message
            case launcher.RoundMade():
                self._hear_out(self._processes.workers)
                self._look_at(message, descriptors)
            case launcher.Writing(under_way):
                self._patience.writes(under_way)
                if under_way:
                    self._live.events.append(Incident(self._live.time_s, None, "a checkpoint is being written"))
            case launcher.StopRequest(why):
                self._ask_to_stop(why)
            case launcher.Trouble():
                self._losses.told(message)
            case launcher.Final():
                self._hear_out(self._processes.workers)
                self._final(message, descriptors)

    def _of_others(self, process: Process, message: object, descriptors: list[int]) -> None:
        if self._job.listening is not None:  # it may be anybody who knows the token
            lines = message.traceback.splitlines()[-LINES_MAX:] if isinstance(message, launcher.Failed) else []
            message = cut(message)
            if isinstance(message, launcher.Failed):
                message = replace(message, traceback="\n".join(cut(lines)))
        match message:
            case launcher.LoggedByWorker(time_s, steps, metrics):
                if self._rounds is not None and process.worker is not None:
                    self._rounds.logged(process.worker, metrics)
                if self._patience.begun_s is not None and process.worker is not None:
                    if process.began_s is None:  # it came late: what it logged first, it logged just now
                        process.began_s = time.monotonic() - self._patience.begun_s - time_s
                    self._outcome.logged.add(Logged(process.began_s + time_s, process.worker, steps, metrics))
            case launcher.Visited(visits, early):
                if not early:
                    self._outcome.visited(visits)
                elif self._rounds is not None and process.worker is not None:
                    self._rounds.told(process.worker, visits)
            case launcher.Evaluated():
                self._outcome.judged(message.evaluation, message.raised, self._live)
                self._patience.judged_s = time.monotonic()
                self._losses.is_judged = self._losses.is_judged or message.final
            case reading.ReadersNow(readers):
                self._live.readers = readers
            case launcher.StopRequest(why):
                self._ask_to_stop(why)
            case launcher.Returned(value):
                assert process.worker is not None, "only a worker trains"
                number = self._job.config.number_of(process.worker, process.rank)
                self._outcome.returned[number] = unpacked(value, number)
            case launcher.Finished(early):
                process.done, process.leaving = True, process.leaving or early
                if early and process.is_leader:
                    self._losses.happened(process.worker, f"{process.title} left in good order, as it was told to")
                self._seats.has_finished(process)
            case launcher.Arrived():
                self._seats.arrived(message, descriptors)
            case launcher.TurnedAway(address, why):
                self._losses.happened(None, f"{address} knocked and was turned away: {why}")
            case remote.Knock():
                self._seats.knocked(process, message)
            case remote.Away(is_away):
                self._seats.away(process, is_away)
            case remote.SeatRefused(_, why):
                self._losses.happened(process.worker, f"{process.title} was hung up on: {why}")
            case launcher.Failed():
                self._losses.failed(process, message)
            case launcher.StandingBy(standbys):
                self._standing_by = standbys
            case launcher.Trouble():  # the standbys' process does not know the run's time
                self._losses.told(replace(message, incident=replace(message.incident, time_s=self._live.time_s)))

    def _look_at(self, made: launcher.RoundMade, descriptors: list[int]) -> None:
        """Have the user look at this version, and let the next round begin. After Ctrl-C nobody looks."""
        assert self._rounds is not None and made.model is not None, "somebody looks at rounds"
        model, layout = made.model, Layout(made.model.specs)
        kept = copied(descriptors[0], made.lies, layout)
        chosen = None
        if not self._ctrl_c.pressed:
            weights = {name: kept[index] for name, index in model.names}
            own = made.built_from
            round = self._rounds.look(
                made, weights, lambda: load_structure(own, layout.specs, tuple(kept)) if own else None
            )
            chosen = round.chosen
            if why := round.stopped or self._watch(self._live):  # before the next round begins
                self._ask_to_stop(why)
            self._patience.heard_s = time.monotonic()  # nobody was heard meanwhile
        self._processes.tell_server(launcher.BeginRound(chosen))

    def _hear_out(self, processes: Sequence[Process]) -> None:
        """Read what they sent before the server's last message: it may say why the run ended, or what they raised."""
        for process in processes:
            while not process.gone and readable(process.channel.fileno(), 0.0) and self._hear(process):
                pass

    def _supervise(self) -> None:
        """Do what is due: faults, targets, and the end of a server that is silent and of workers that were asked to end."""
        patience = self._patience
        self._losses.replace_server()
        self._losses.give_up_server()
        if self._job.listening is not None and patience.server_fell_silent(LEASE_S):
            self._losses.happened(
                None, f"the server has said nothing for {LEASE_S:g} s: it is stopped, or hangs; the workers wait"
            )
        if patience.begun_s is not None:
            while self._kills and time.monotonic() - patience.begun_s >= self._kills[0].after_s:
                self._losses.strike(self._kills.pop(0).worker)
            reason = self._watch(self._live)
            if reason is not None:
                self._ask_to_stop(reason)
        elif self._job.listening is None:
            self._starting.waits_for(PREPARES)
        if not self._patience.stopping and self._outcome.final is None:
            self._seats.fill()
        if patience.workers_are_late():
            stopped = self._losses.stopped
            for process in self._processes.workers:
                if not process.done and process.worker is not None and process.worker not in stopped:
                    stopped.add(process.worker)
                    self._losses.kill(process)

    def _scale(self, workers: int) -> None:
        """Whoever watches the run wants so many workers; a run that ends keeps those it has."""
        self._seats.check(workers)
        if not self._patience.stopping and self._outcome.final is None:
            self._seats.scale(workers)
            self._live.workers = self._seats.workers

    def _order(self, order: launcher.ToServer) -> None:
        """Whoever watches the run wants that of the server; a run that ends stays as it is."""
        if not self._patience.stopping and self._outcome.final is None:
            self._processes.tell_server(order)

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
        if message.model is not None:
            self._outcome.hands_over(*handed_over(message, descriptors))
        self._losses.closed(message)
