"""One simulated run: workers, a server, the links between them, and the faults that strike them.

Time is an agenda of events, every choice comes from the plan's seed, nothing runs beside it: the same plan gives the
same run, event for event. First faults strike (safety: the oracle watches every event). Then the network heals, dead
processes are started again, and everybody has to get on (liveness).
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop
from typing import Any

from plesio.core.sequencer import Sequencer
from torture import chaos
from torture.agenda import Agenda
from torture.disk import Disk
from torture.network import Link
from torture.oracle import Oracle, PromiseBroken
from torture.plan import DEATHS, LIVENESS_LEASES, PATIENCE_S, SILENCE_S, STEP_S, Plan
from torture.process import Clock, Process
from torture.reborn import Log, Reborn, Survivor
from torture.server import Server
from torture.sessions.envelopes import Beat, FromServer, FromWorker, Received
from torture.sessions.service import Service
from torture.sessions.session import Phase, WorkerSession
from torture.story import words
from torture.tables.actor import Actor
from torture.tables.desk import Desk
from torture.tables.process import RowProcess
from torture.tables.reborn import RebornRows, Rows
from torture.tables.rows import RowsOfRun
from torture.tables.server import RowServer

LOOK_S = 0.1
CALM_S = 1.0
"""How long a run goes on after the faults, at most, if everybody gets on."""
STAYS_DEAD = 0.5
OUGHT = 2
"""Answers each worker must get once the faults are over."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of: the real parts, unless a bug is planted in one."""

    sequencer: type[Sequencer] = Sequencer
    service: type[Service] = Service
    worker_session: type[WorkerSession] = WorkerSession
    disk: type[Disk] = Disk
    server: type[Server] = Server
    process: type[Process] = Process
    row_server: type[RowServer] = RowServer
    table_server: type[Actor] = Actor
    desk: type[Desk] = Desk
    reborn: type[Reborn] = Reborn
    reborn_rows: type[RebornRows] = RebornRows
    rows: type[Rows] = Rows
    log: type[Log] = Log
    survivor: type[Survivor] = Survivor


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: `failure` says which promise was broken, None if none was.

    `tally` counts what happened ("letters lost", "server crashes", ...), `boundaries` the moments at which the server
    could have crashed, `story` holds a line an event if it was asked for.
    """

    plan: Plan
    failure: str | None
    time_s: float
    contributions: int
    boundaries: int
    tally: Counter[str]
    story: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seat:
    """Who sits, or sat, in a worker's seat; the last is the one that ought to."""

    processes: list[Process] = field(default_factory=list)
    launches: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether no process is left in it."""
        return not any(one.alive for one in self.processes)


class World:
    """A run of a plan; `crash_at` makes the server crash (or only its process die, where it is reborn) at that boundary."""

    def __init__(self, plan: Plan, parts: Parts, *, story: bool = False, crash_at: int | None = None) -> None:
        rng = random.Random(plan.seed)
        self.plan = plan
        self.parts = parts
        self.random: Callable[[], float] = rng.random
        self.agenda = Agenda()
        self.tally: Counter[str] = Counter()
        self.story: list[str] | None = [] if story else None
        self._boundaries = 0  # of earlier lives of the server
        self.oracle = Oracle(plan)
        self.disk = parts.disk(rng)
        self.up = [Link(self.agenda, rng, plan, self.tally, self._to_server) for _ in range(plan.workers)]
        self.down = [Link(self.agenda, rng, plan, self.tally, self._to_worker) for _ in range(plan.workers)]
        if story:
            for link in (*self.up, *self.down):
                link.story = self._narrate
        self.rng = rng
        self.over = False
        self._healed_s = 0.0
        self._version_healed = 0
        self.rows = RowsOfRun(self) if plan.servers else None
        self.server = self._new_server(1)
        if crash_at is not None:
            self.server.end_at(crash_at)
        self.seats = [_Seat() for _ in range(plan.workers)]
        for worker in range(plan.workers):
            self.launch(worker)
        chaos.schedule(self)
        self.agenda.at(plan.chaos_s, self._heal)

    def run(self) -> Outcome:
        """Let it happen."""
        failure = None
        try:
            self._loop()
            self.oracle.ended(self.server.sequencer)
            if self.rows is not None:
                self.rows.ended()
        except PromiseBroken as broken:
            failure = str(broken)
        except Exception as error:  # whatever stops the core is its failure
            failure = f"the core stopped: {type(error).__name__}: {error}"
        if self.rows is not None:
            self.rows.close()
        self.server.close()
        self.tally["switches"] += self.oracle.switches
        story = tuple(self.story or ())
        made = len(self.oracle.made)
        boundaries = self._boundaries + self.server.boundaries
        return Outcome(self.plan, failure, self.agenda.now_s, made, boundaries, self.tally, story)

    def _loop(self) -> None:
        agenda = self.agenda
        heap = agenda.heap
        while not self.over:
            agenda.now_s, _, handler, first, second = heappop(heap)
            handler(first, second)

    # Who is there

    def _clock(self) -> Clock:
        drift = 0.1 if "clock drift" in self.plan.faults else 0.0
        return Clock(1.0 + drift * (2 * self.random() - 1), 1000.0 * self.random())

    def _new_server(self, epoch: int) -> Server:
        parts = self.parts
        if DEATHS in self.plan.faults:
            kind: type[Server] = parts.reborn if self.rows is None else parts.reborn_rows
        else:
            kind = parts.server if self.rows is None else parts.row_server
        return kind(self, epoch, self._clock())

    def launch(self, worker: int) -> None:
        """Start a process in this seat."""
        seat = self.seats[worker]
        seat.launches += 1
        slow = "stragglers" in self.plan.faults and self.random() < 0.3
        step_s = STEP_S * (100 ** self.random() if slow else 1.0)
        self.tell(f"worker {worker} starts")
        kind = self.parts.process
        if self.rows is not None:  # two would write into one slot: the older one is killed first
            kind = RowProcess
            for older in seat.processes:
                older.alive = False
        seat.processes = [one for one in seat.processes if one.alive]
        seat.processes.append(kind(self, worker, seat.launches, self._clock(), step_s))

    def is_well(self, worker: int) -> bool:
        """Whether this worker's process has lived for longer than a lease, on a network that works."""
        process = self.seats[worker].processes[-1]
        since_s = max(self._healed_s, process.started_s)
        return process.alive and process.session.phase < Phase.LOST and self.agenda.now_s - since_s > 2 * SILENCE_S

    def server_crashed(self) -> None:
        """It starts again after a while."""
        self.tally["server crashes"] += 1
        self.tell("server CRASHES")
        self.agenda.at(self.agenda.now_s + 0.01 + 0.3 * self.random(), self._restart_server)

    def _restart_server(self, _: object, __: object) -> None:
        self._boundaries += self.server.boundaries
        self.server = self._new_server(self.server.epoch + 1)
        self._count_from_here()  # a crash that was on its way may come after the network healed
        self.tell(f"server starts again at version {self.server.sequencer.version}, epoch {self.server.epoch}")

    # Letters

    def _to_server(self, letter: FromWorker, payload: int) -> None:
        self.server.hear(letter, payload)

    def _to_worker(self, letter: FromServer, life: int) -> None:
        for process in self.seats[letter.worker].processes:
            process.hear(letter, life)

    # Liveness

    def _heal(self, _: object, __: object) -> None:
        """Faults are over. What hangs goes on hanging, and one may stay dead: the others must get on without it."""
        self.tell("the network heals")
        for link in (*self.up, *self.down):
            link.heal()
        left = any(seat.processes[-1].gets_on for seat in self.seats)
        for worker, seat in enumerate(self.seats):
            process = seat.processes[-1]
            if not process.alive and not process.stays_dead:
                process.stays_dead = left and self.random() < STAYS_DEAD
                if not process.stays_dead:
                    self.launch(worker)
        self._healed_s = self.agenda.now_s
        self.oracle.calm = True
        self._count_from_here()
        self.agenda.at(self.agenda.now_s + LOOK_S, self._look)

    def _count_from_here(self) -> None:
        """What everybody has got is not what they are going to get."""
        for seat in self.seats:
            seat.processes[-1].answers_before = seat.processes[-1].answers
        self._version_healed = self.server.sequencer.version

    def _look(self, _: object, __: object) -> None:
        """Whether everybody has got on, or ought to have."""
        calm_s = self.agenda.now_s - self._healed_s
        version = self.server.sequencer.version
        last = [seat.processes[-1] for seat in self.seats]
        held_up = [one.worker for one in last if one.gets_on and one.answers < one.answers_before + OUGHT]
        dead_but_seated = [
            worker for worker, seat in enumerate(self.seats) if seat.is_dead and self.oracle.sits(worker)
        ]
        if held_up or dead_but_seated or self.server.down or version <= self._version_healed:
            if calm_s > LIVENESS_LEASES * PATIENCE_S and self.server.waits_for_nobody():
                self.over = True
            elif calm_s > LIVENESS_LEASES * PATIENCE_S:
                raise PromiseBroken(
                    f"everybody gets on: {calm_s:.0f} s after the faults were over workers {held_up} still wait, "
                    f"the dead {dead_but_seated} still sit, version {self._version_healed} became {version}"
                )
        elif sum(self.server.model.folded) >= self.plan.workers * self.plan.contributions or calm_s > CALM_S:
            self.over = True
        self.agenda.at(self.agenda.now_s + LOOK_S, self._look)

    # The story

    def tell(self, line: str) -> None:
        """Write a line of the story, if there is to be one."""
        if self.story is not None:
            self.story.append(f"{self.agenda.now_s:8.3f} s  {line}")

    def _narrate(self, letter: Any, payload: int, fate: str) -> None:
        if not isinstance(letter, (Beat, Received)):
            self.tell(f"{words(letter, payload, self.oracle.made)} ... {fate}")


def simulate(plan: Plan, parts: Parts | None = None, *, story: bool = False, crash_at: int | None = None) -> Outcome:
    """Run a plan with the real parts, or with others."""
    with _uncollected():
        return World(plan, parts or Parts(), story=story, crash_at=crash_at).run()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles, which takes a fifth of a run's time and finds none before its end."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
