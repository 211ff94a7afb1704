"""Knows what was promised and sees everything: raises at the first promise that is broken.

It keeps its own account of a run and asks the core for nothing but what is to be checked: contributions by what is in
the parameters, staleness by what the workers know they computed from, silence by the simulation's own time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NoReturn

from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Effect,
    Event,
    Evict,
    Fold,
    Grant,
    Joined,
    LeaseWanted,
    Left,
    Pushed,
    RowsWanted,
    Switch,
    Switched,
    Verdict,
)
from plesio.core.sequencer import Sequencer
from torture.disk import Disk
from torture.model import Contribution, Image, Model
from torture.plan import PATIENCE_S, SILENCE_S, Plan
from torture.sessions.envelopes import Beat, Fenced, FromServer, FromWorker, Level, Received
from torture.sessions.session import Welcome, WorkerSession

if TYPE_CHECKING:
    from torture.server import Server

ROUNDING_S = 1e-6


class PromiseBroken(AssertionError):
    """What was promised, and what came instead."""


class _Seat:
    """A member: its clock, the highest number answered, and when it was last heard by the sequencer."""

    __slots__ = ("answered", "clock", "heard_s", "incarnation", "pushed")

    def __init__(self, incarnation: int, clock: int, now_s: float) -> None:
        self.incarnation = incarnation
        self.clock = clock
        self.answered = self.pushed = 0
        self.heard_s = now_s


class Oracle:
    """The judge of one simulated run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: list[Contribution] = []
        self.switches = 0
        self._drains = False  # nobody goes on before all wait
        self._declared(0)
        self._enter(0)
        self.model = Model(plan.workers)
        self.clock_rate = 1.0
        self.epoch = 0
        self.now_s = 0.0
        self.calm = False
        self._seats: dict[int, _Seat] = {}
        self._joining: dict[int, int] = {}  # who waits to be let in: its incarnation
        self._slowest = 0
        self._round = 0  # who ever sat in this round
        self._letter_s = [0.0] * plan.workers
        self._handed_in = [-1] * plan.workers  # each worker's last contribution that came
        self._images: dict[bytes, Image] = {}
        self._safe: Image | None = None  # the checkpoint that no crash can take away
        self._told_durable = [0] * plan.workers
        self._told: dict[WorkerSession, tuple[int, int, int]] = {}  # life of the server, version, applied

    def _enter(self, phase: int) -> None:
        """What the strategy of this phase promises."""
        self._phase, strategy = phase, self.plan.strategy.phases[phase]
        self.lead = getattr(strategy.release, "clocks", math.inf)
        self.after_fold = strategy.release.after_fold
        self.most_pending = getattr(strategy.gather, "k", 1) - 1
        self.durable_answers = self.plan.level is Level.DURABLE and not self.most_pending

    def _declared(self, version: int) -> int:
        """The phase that the plan has at `version`; from now on the next one is looked out for."""
        self._due_at = self.plan.strategy.next_phase_at(version)
        return self.plan.strategy.phase_at(version)

    # The server's life

    def booted(self, server: Server, image: Image | None) -> None:
        """A server starts, from a checkpoint if there is one."""
        self.model, self.clock_rate, self.epoch = server.model, server.clock.rate, server.epoch
        self.now_s = now_s = server.agenda.now_s
        model, sequencer = server.model, server.sequencer
        self._seats.clear()
        self._joining.clear()
        self._enter(image.sequencer.phase if image else 0)
        self._declared(model.version)
        self._drains = False
        self._slowest = image.sequencer.members.slowest if image else 0
        self._round = 0
        self._letter_s = [now_s] * len(self._letter_s)
        for worker, durable in enumerate(self._told_durable):
            if model.folded[worker] < durable:
                self._broken(
                    f"durable contributions are never lost: worker {worker} was told that {durable} are, "
                    f"{model.folded[worker]} are left"
                )
        if sequencer.version != model.version:
            self._broken(f"a checkpoint is whole: the order is at {sequencer.version}, the model at {model.version}")
        if image is not None and image not in self._images.values():
            self._broken("a checkpoint is read as it was written")
        self._data_agrees(sequencer)
        self.disk_changed(server.world.disk)

    def checkpoint_begun(self, content: bytes, image: Image) -> None:
        """The server is going to write this."""
        if image.sequencer.phase != self._phase:
            self._broken(f"a checkpoint is of the phase that holds: {self._phase}, it says {image.sequencer.phase}")
        self._images[content] = image

    def disk_changed(self, disk: Disk) -> None:
        """A step of writing a checkpoint is done."""
        content = disk.surviving()
        self._safe = self._images.get(content) if content else None

    # Events and effects

    def letter_came(self, letter: FromWorker) -> None:
        """Something of a worker arrived at the server."""
        sender = letter if isinstance(letter, Beat) else letter.event
        if self._incarnation(sender.worker) == sender.incarnation and letter.epoch == self.epoch:
            self._letter_s[sender.worker] = self.now_s

    def event(self, event: Event, payload: int, effects: Sequence[Effect]) -> None:
        """The sequencer was told an event and wants these effects carried out."""
        if isinstance(event, (Pushed, LeaseWanted, Abandoned, RowsWanted)):
            seat = self._seats.get(event.worker)
            if seat is None or seat.incarnation != event.incarnation:
                self._broken(f"only members are listened to: {event}")
            seat.heard_s = self.now_s
            if isinstance(event, Pushed):
                self._handed_in[event.worker] = payload
                seat.pushed = event.number
                seat.clock += not (effects and _is_repeated(effects[0]))
        elif isinstance(event, Joined):
            self._gone(event.worker)
            self._joining[event.worker] = event.incarnation
            self._letter_s[event.worker] = self.now_s
        elif isinstance(event, Left):
            self._left(event)
        elif isinstance(event, Switched):
            self._drains |= event.phase != self._phase
        if self._drains and any(isinstance(one, Grant) for one in effects):
            self._drained({one.worker for one in effects if isinstance(one, Evict)})

    def _drained(self, evicted: Collection[int] = ()) -> None:
        """All begin anew at clock 0, in another phase or in the same one after all."""
        waited_for = [worker for worker in self._seats if worker not in evicted]
        at_work = [worker for worker in waited_for if self._seats[worker].pushed <= self._seats[worker].answered]
        if at_work:
            self._broken(f"another phase waits for everybody: workers {at_work} are at work")
        self._drains = False
        self._slowest, self._round = 0, len(self._seats)
        for seat in self._seats.values():
            seat.clock = 0

    def _left(self, event: Left) -> None:
        if self._incarnation(event.worker) == event.incarnation:
            self._gone(event.worker)

    def _incarnation(self, worker: int) -> int | None:
        """Of who sits there, or waits to be let in."""
        seat = self._seats.get(worker)
        return self._joining.get(worker) if seat is None else seat.incarnation

    def fell_silent(self, event: Left, is_well: Callable[[int], bool]) -> None:
        """The server takes a worker for dead because it heard nothing of it."""
        silent_s = (self.now_s - self._letter_s[event.worker]) * self.clock_rate
        if silent_s < SILENCE_S - ROUNDING_S:
            self._broken(f"a lease is kept: worker {event.worker} was silent for {silent_s:.3f} s only")
        if self.calm and event.worker in self._seats and is_well(event.worker):
            self._broken(f"a live worker keeps its lease: worker {event.worker} lost it on a healthy network")

    def _gone(self, worker: int) -> None:
        """Nobody sits there any longer; who joins starts at the clock of the slowest."""
        self._joining.pop(worker, None)
        if self._seats.pop(worker, None) and self._seats:
            self._slowest = min(one.clock for one in self._seats.values())

    def effect(self, event: Event, effect: Effect) -> None:
        """An effect was carried out."""
        if isinstance(effect, Grant):
            self._granted(effect)
        elif isinstance(effect, Cancel):
            self._is_current(effect).answered = effect.number
        elif isinstance(effect, Evict):
            self._evicted(effect)
        elif isinstance(effect, Switch):
            self._switched(effect)

    def _switched(self, switch: Switch) -> None:
        self._drained()
        self.switches += 1
        self._enter(switch.phase)

    def _is_current(self, effect: Grant | Cancel) -> _Seat:
        if effect.version != self.model.version:
            self._broken(
                f"who goes on does so from the newest version: it is {self.model.version}, told was {effect.version}"
            )
        seat = self._seats.get(effect.worker)
        if seat is None or effect.number <= seat.answered:
            self._broken(f"a contribution of a member is answered once: {effect}")
        return seat

    def _granted(self, grant: Grant) -> None:
        if grant.number == 0:
            incarnation = self._joining.pop(grant.worker)
            clocks = [one.clock for worker, one in self._seats.items() if worker != grant.worker]
            self._slowest = min(clocks, default=self._slowest)
            self._seats[grant.worker] = _Seat(incarnation, self._slowest, self.now_s)
            self._round += 1
            return
        seat = self._is_current(grant)
        seat.answered, seat.heard_s = grant.number, self.now_s
        if grant.verdict is Verdict.TAKEN and not self.most_pending:
            payload = self._handed_in[grant.worker]
            if payload >= len(self.model.params) or not self.model.params[payload]:
                self._broken(f"what is answered as taken is in the parameters: {grant} is not")
        if self.lead < math.inf:
            slowest = min(one.clock for one in self._seats.values())
            if seat.clock > slowest + self.lead:
                self._broken(
                    f"nobody is more than {self.lead} clocks ahead: worker {grant.worker} goes on at {seat.clock}, "
                    f"the slowest is at {slowest}"
                )

    def _evicted(self, effect: Evict) -> None:
        silent_s = (self.now_s - self._seats[effect.worker].heard_s) * self.clock_rate
        if silent_s < PATIENCE_S - ROUNDING_S or abs(silent_s - effect.silent_s) > ROUNDING_S:
            self._broken(
                f"only the silent are evicted: worker {effect.worker} was silent for {silent_s:.3f} s of "
                f"{PATIENCE_S:g}, told was {effect.silent_s:.3f}"
            )
        self._gone(effect.worker)

    def folded(self, fold: Fold, payloads: Sequence[int]) -> None:
        """Before these contributions go into the parameters as a fold says."""
        model, made = self.model, self.made
        if fold.version != model.version + 1:
            self._broken(f"versions are dense: {model.version} is followed by {fold.version}")
        if len(payloads) != len(fold.members):
            self._broken(f"what is folded is what the order names: {len(payloads)} are held, it names {fold.members}")
        for member, payload in zip(fold.members, payloads, strict=True):
            one = made[payload]
            key = (one.worker, one.incarnation, one.number)
            if key != (member.worker, member.incarnation, member.number):
                self._broken(f"what is folded is what the order names: it named {member}, folded was {key}")
            if member.staleness != model.version - one.computed_from:
                self._broken(
                    f"staleness is the true one: {key} was computed from {one.computed_from} and goes into "
                    f"{fold.version}, told was {member.staleness}"
                )
            if payload < len(model.params) and model.params[payload]:
                self._broken(f"a contribution is folded once: {key} is in the parameters already")
            if one.batch < len(model.visited) and model.visited[one.batch]:
                self._broken(f"a batch is visited once: {one.batch} of {key} is in the parameters already")
            if not one.finite:
                self._broken(f"the parameters stay finite: {key} is not")
        self._round = len(self._seats)
        if fold.version >= self._due_at:
            self._drains |= self._declared(fold.version) != self._phase

    def sits(self, worker: int) -> bool:
        """Whether this worker is a member, or its data waits for it."""
        return worker in self._seats

    def settled(self, sequencer: Sequencer) -> None:
        """An event was dealt with."""
        pending = len(sequencer._pending)
        if pending > (self._round if self.after_fold else self.most_pending):
            self._broken(f"memory is bounded: {pending} contributions wait")
        if pending and not self._seats:
            self._broken(f"the last to leave completes a fold: {pending} contributions wait, and nobody is left")

    # What workers are told

    def told(self, letter: FromServer) -> None:
        """The server sends a letter."""
        if isinstance(letter, (Received, Fenced)):
            return
        worker = letter.worker
        if letter.applied != self.model.folded[worker]:
            self._broken(
                f"applied is what is in the parameters: {self.model.folded[worker]} of worker {worker}, "
                f"told was {letter.applied}"
            )
        safe = self._safe.model.folded[worker] if self._safe else 0
        if letter.durable > safe:
            self._broken(f"durable is what a crash leaves: {safe} of worker {worker}, told was {letter.durable}")
        self._told_durable[worker] = max(self._told_durable[worker], letter.durable)
        effect = letter.effect
        if self.durable_answers and type(effect) is Grant and letter.serial > 0 and effect.verdict is Verdict.TAKEN:
            payload = self._handed_in[worker]
            if self._safe is None or self._safe.model.params[payload : payload + 1] != b"\x01":
                self._broken(f"the answer waits until it is durable: worker {worker} had it before")

    def heard(self, session: WorkerSession, life: int) -> None:
        """A worker took in a letter of that life of the server: what it knows now is what may be undone."""
        self._told[session] = (life, session.version, session.applied)

    def welcomed(self, session: WorkerSession, welcome: Welcome, life: int) -> None:
        """A worker is let in (again): if the server went back, it says so, to the last unit."""
        life_before, version, applied = self._told.get(session, (life, 0, 0))
        back = welcome.went_back
        if life_before == life:
            if back is not None:
                self._broken(f"nothing is undone without a crash: worker {session.worker} was told {back}")
        elif back is None:
            self._broken(f"a restart is told: worker {session.worker} was not")
        else:
            # `told` has seen to what the letter says; another process in that seat may have contributed since
            undone = max(0, applied - session.applied)
            if (back.version, back.to_version, back.undone) != (version, welcome.version, undone):
                self._broken(
                    f"what is undone is told to the last unit: {undone} of worker {session.worker}, from version "
                    f"{version}; told was {back}"
                )
        self.heard(session, life)

    # The end

    def ended(self, sequencer: Sequencer) -> None:
        """Every batch is visited, skipped or still to be had: none is lost, none is in two places. When all have left,
        nothing waits to be folded."""
        self._data_agrees(sequencer)
        state = sequencer.state().leases
        leases = type(sequencer.leases).restore(state, state.workers, stealing=True)
        for worker in range(state.workers):
            leases.left(worker)
        rest = [epoch * (state.total or 0) + batch for epoch, batch in leases.take(0, state.epochs - 1, 1, 10**9)]
        visited = sum(self.model.visited)
        if any(one < len(self.model.visited) and self.model.visited[one] for one in rest):
            self._broken("a batch is visited once: one that is in the parameters was still to be had")
        if visited + state.skipped + len(rest) != leases.opened:
            self._broken(
                f"no batch is lost: of {leases.opened}, {visited} were visited, {state.skipped} skipped, "
                f"{len(rest)} are left"
            )
        for worker, seat in list(self._seats.items()):
            self._gone(worker)
            sequencer.receive(Left(worker, seat.incarnation, died=False), self.now_s)
        self.settled(sequencer)

    def _data_agrees(self, sequencer: Sequencer) -> None:
        if sequencer.leases.done != sum(self.model.visited):
            self._broken(
                f"done is what is in the parameters: {sum(self.model.visited)} batches, "
                f"told was {sequencer.leases.done}"
            )

    def _broken(self, words: str) -> NoReturn:
        raise PromiseBroken(words)


def _is_repeated(effect: Effect) -> bool:
    return isinstance(effect, Discard) and effect.verdict is Verdict.DUPLICATE
