"""What happens in a run as its launcher tells it: whom it loses, whether it goes on without, and why it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from plesio.errors import DeadlineError, PlesioError, ServerLostError, WorkerError, WorkerLostError, error_class
from plesio.launch.job import Job, Live, Outcome
from plesio.launch.local.patience import Patience
from plesio.launch.local.processes import EVALUATOR_TITLE, HEADS_TITLE, READERS_TITLE, Process, Processes
from plesio.launch.local.rebirths import Rebirths
from plesio.launch.local.seats import Seats
from plesio.launch.resume import resumable
from plesio.observe.summary import ALL_LEFT, TOLD, Incident
from plesio.protocol import launcher
from plesio.protocol.coding import cut

log = logging.getLogger("plesio")


class Losses:
    """Those of one job, told in `outcome` for the summary, and in `live` for whoever listens. `hear_out` takes what processes
    said last.

    Attributes:
        error: the first that there was: the others are its consequences.
        is_judged: no evaluation is waited for any more.
        stopped: workers that did not end when asked to, and were killed for it.
    """

    def __init__(
        self,
        job: Job,
        outcome: Outcome,
        live: Live,
        processes: Processes,
        seats: Seats,
        patience: Patience,
        hear_out: Callable[[Sequence[Process]], None],
    ) -> None:
        self.error: PlesioError | None = None
        self.is_judged = job.evaluate is None
        self.stopped: set[int] = set()
        self._job, self._config, self._outcome, self._live = job, job.config, outcome, live
        self._processes, self._seats, self._patience, self._hear_out = processes, seats, patience, hear_out
        self._rebirths = Rebirths()
        self._raised: dict[int, str] = {}  # workers that the others go on without, and what
        self._deaths: list[Incident] = []  # closed lines, to the server

    def happened(self, worker: int | None, what: str, time_s: float | None = None) -> None:
        """Others' words may be in it."""
        what = cut(what)
        incident = Incident(self._live.time_s if time_s is None else time_s, worker, what)
        self._outcome.incidents.append(incident)
        self._live.events.append(incident)
        log.info("%s", what)

    def told(self, trouble: launcher.Trouble) -> None:
        """It happened to the server, or it saw it."""
        self.happened(trouble.incident.worker, trouble.incident.what, trouble.incident.time_s)
        if trouble.died:
            self._deaths.append(trouble.incident)
        if trouble.fatal and trouble.kind == "ServerLostError":
            self.lose(trouble.fatal)
        elif trouble.fatal:
            self.fail((error_class(trouble.kind) or PlesioError)(trouble.fatal))

    def fail(self, error: PlesioError) -> None:
        self.error = self.error or error

    def lose(self, what: str, more: str = "", kind: type[PlesioError] = ServerLostError) -> None:
        """A server is lost, and what it held: say what is left."""
        self._lose(kind(f"{what}; {self.what_is_left}{more}"))

    def _lose(self, error: PlesioError) -> None:
        error.resume = resumable(self._job)
        self.fail(error)

    @property
    def where(self) -> str:
        return f"at version {self._live.version}, {max(self._live.time_s, 0.0):.1f} s into training"

    @property
    def what_is_left(self) -> str:
        """What is left of a run whose server is lost."""
        config, folder = self._config, self._job.keeping.folder
        if not config.strategy.via.at_server:
            how = "worker 0's training function can save the model"
            return f"the weights are lost ({config.strategy.name} keeps no checkpoints; {how})"
        if (place := resumable(self._job)) is not None:
            return f"go on from the last checkpoint with resume={str(place)!r}"
        why = "checkpoint=ps.Checkpoint(...), --checkpoint-every-s on the command line, would have kept them"
        if folder:
            why = f"there is no checkpoint in {folder!r} yet"
        return f"the weights were in its memory and are lost ({why})"

    def closed(self, final: launcher.Final) -> None:
        """No worker is left. The run fails if it did not begin, or all died, though nobody asked them to end. If all left in
        good order it is interrupted."""
        left = {one.left for one in final.workers}
        all_died = "died" in left and left <= {"died", TOLD}
        if final.model is None:
            if all_died or left == {TOLD}:
                self.fail(
                    WorkerLostError(f"training did not begin: all {len(final.workers)} workers died or left before")
                )
            elif self._job.listening is not None and not self._patience.stopping:
                how = ", ".join(f"worker {one.worker} {one.left or 'did not come'}" for one in final.workers)
                if self._job.listening.takes_over:
                    why = f"no worker came back to this head within {self._job.listening.rejoin_s:g} s"
                    or_else = "if all had ended, a checkpoint has what they came to; else start them again"
                    self.lose(f"{why} ({how}): {or_else}", kind=WorkerLostError)
                else:
                    self.fail(WorkerLostError(f"training did not begin: {how}; start the head and its workers again"))
        elif all_died and not self._patience.asked:
            raised = next((f"; {what}" for what in self._raised.values()), "")
            last = f"the last at version {final.version}, {final.wall_s:.1f} s into training"
            go_on = f"; {self.what_is_left}" if resumable(self._job) is not None else ""
            self._lose(WorkerLostError(f"every worker died; {last}{raised}{go_on}"))

        elif left == {TOLD} and not self._patience.stopping:
            self._outcome.ended = ALL_LEFT

    def say_how_they_left(self) -> None:
        """Say it of workers that raised or were stopped: to the server, every closed line is a death."""
        outcome = self._outcome
        known = [one for one in self._deaths if one.worker in self._raised]
        outcome.incidents = [one for one in outcome.incidents if one not in known]
        if outcome.final is None:
            return
        why = {**dict.fromkeys(self.stopped, "stopped"), **dict.fromkeys(self._raised, "raised")}
        workers = tuple(
            replace(one, left=why.get(one.worker, one.left)) if one.left == "died" else one
            for one in outcome.final.workers
        )
        outcome.final = replace(outcome.final, workers=workers)
        for one in workers:
            if one.left == "stopped":
                what = f"worker {one.worker} did not end within {self._patience.grace} and was stopped: what it was at is lost"
                outcome.incidents.append(Incident(outcome.final.wall_s, one.worker, what))

    # Who is lost

    def failed(self, process: Process, message: launcher.Failed) -> None:
        """Plesio's own errors keep their class; anything else is the user's. After a stop it costs nobody the run."""
        worker, stopping = process.worker, self._patience.stopping
        what = f"{process.title} raised {message.kind}: {message.why}"
        process.done = True
        if worker is None:
            self.fail(PlesioError(f"{process.title} raised {message.kind}:\n{message.traceback}"))
        elif message.own and message.kind == "ServerLostError":
            pass  # the server's own end is told once
        elif worker in self._raised:
            pass  # another rank of its island did
        elif self._patience.begun_s is not None and (stopping or self._goes_on):
            self._end_island(process)
            alone = stopping or all(one.done for one in self._processes.workers if one.worker != worker)
            others = "" if alone else "; the others go on"
            self.happened(worker, what + others)
            self._raised[worker] = what
        else:
            kind = error_class(message.kind) if message.own else None
            error = kind(message.why) if kind is not None else WorkerError(f"{what}\n{message.traceback}")
            if kind is not None:
                error.add_note(f"\n{message.traceback.rstrip()}")  # where in the user's function
            self.fail(error)

    @property
    def _goes_on(self) -> bool:
        """Whether the run does without a worker that raised: not one whose processes all-reduce."""
        return self._config.on_worker_error == "continue" and not self._config.strategy.every.among_ranks

    def hung_up(self, process: Process) -> None:
        """Its line is closed."""
        final = self._outcome.final
        if process in self._processes.table_servers and final is None and not process.done:
            joined = process in self._seats.table_servers
            how = "was lost" if joined else f"({process.pid}) died"
            self.lose(f"{process.title} {how} {self.where}")
        elif process is self._processes.server and final is None:
            self._hear_out(self._processes.table_servers)
            died = f"the server process ({process.pid}) died {self.where}"
            told = self._config.durability == "process" or self._config.why_not_durable
            spare = "" if told else "; with durability='process' a spare goes on, or the run says why none can"
            self.lose(died, f"; its own messages, if it left any, are above{spare}")
        elif process.title == EVALUATOR_TITLE:
            if not self.is_judged and not process.done:
                what = "the evaluator died: nothing is evaluated from here on, and no target is noticed"
                self.happened(None, what)
            self.is_judged = True
        elif process.title == READERS_TITLE:
            self._live.readers = ()
            if final is None and not self._patience.stopping:
                self.happened(None, "the readers' process died: nobody can read the run from here on")
        elif process.title == HEADS_TITLE and final is None and not self._patience.stopping:
            self.lose(f"the standbys' process died {self.where}, and no head may go on without: a standby does")
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
                self.kill(one)
        ends = self._patience.stopping or self.error is not None
        if not ends and self._seats.begin_anew(process.worker, self._live.version):
            what = f"worker {process.rank} died {self.where}: all begin anew from what was shown last"
            self.happened(process.rank, what)

    def kill(self, process: Process) -> None:
        """End a worker's process, or hang up on one that somebody else started."""
        process.kill()
        if not process.ours and process.worker is not None and process.is_leader:
            self._processes.tell_server(launcher.Emptied(process.worker))

    def strike(self, worker: int | None) -> None:
        """The user wants that worker dead, or (None) the server."""
        killed = self._processes.server if worker is None else self._processes.numbered(worker)
        if killed is not None:
            self._rebirths.expected += killed is self._processes.server
            killed.kill()

    def reborn(self, reborn: launcher.Reborn) -> None:
        """The server has died. Its spare goes on, and says when it does; if that is in vain, the run ends."""
        server = self._processes.server
        died, server.pid = server.pid, reborn.pid
        if why := self._rebirths.why_not(reborn.generation, reborn.turn, time.monotonic()):
            self.lose(f"the server process ({died}) died {self.where}, and is not replaced: {why}")

    def replace_server(self) -> None:
        """Where another goes on from it, a server that hangs is killed."""
        server, patience = self._processes.server, self._patience
        if self._config.is_durable and self._outcome.final is None and patience.server_hangs(server.pid):
            at = ", and gets no further with a checkpoint" if patience.writing else ""
            what = f"the server ({server.pid}) has said nothing for {self._config.timeout_s:g} s{at}: killed"
            self.happened(None, what)
            server.kill()

    def give_up_server(self) -> None:
        """One that is silent for too long is lost."""
        patience, processes = self._patience, self._processes
        workers_left = not all(process.gone for process in processes.workers)
        silence_s = patience.silence_s(workers_left)
        if silence_s is None or self._outcome.final is not None:
            return
        why = "it was stopped, or hangs"
        if patience.writing:
            why = f"it is writing a checkpoint into {self._job.keeping.folder!r} and does not get done"
        who = f"the server process ({processes.server.pid}) said nothing for {silence_s:g} s {self.where}"
        all_gone = "" if workers_left else ", though every worker had ended"
        what = f"{who}{all_gone}: {why} (timeout_s={self._config.timeout_s:g})"
        self.lose(what, kind=DeadlineError)
