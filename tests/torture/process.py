"""A worker process of the simulation: a training loop around the real session."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from plesio.core.events import Cancel, Grant, Leased
from plesio.core.leases import Batch
from torture.model import Contribution
from torture.plan import HEARTBEAT_S, RETRY_S
from torture.sessions.envelopes import FromServer, FromWorker
from torture.sessions.session import Lost, News, Phase, Welcome

if TYPE_CHECKING:
    from torture.world import World

LAUNCH = 1000
"""Incarnations a process may use up; the next one in its seat starts above them."""
LEASE_BATCHES = 6
REJOIN_S = 0.01
LEAST_S = 0.001
NOT_FINITE = 0.03
NO_PAYLOAD = -1


class Clock:
    """A node's clocks. The one to measure by is true time x rate + offset; the wall clock also jumps."""

    __slots__ = ("jump_s", "offset_s", "rate")

    def __init__(self, rate: float, offset_s: float) -> None:
        self.rate = rate
        self.offset_s = offset_s
        self.jump_s = 0.0


class Process:
    """Leases batches, computes a contribution of each, sends it, and goes on as it is told.

    Under a strategy whose answers are taken late it computes the next one while the answer travels, and sends it then.
    """

    def __init__(self, world: World, worker: int, launch: int, clock: Clock, step_s: float) -> None:
        self.world = world
        self.worker = worker
        self.clock = clock
        self.step_s = step_s
        self.session = world.parts.worker_session(worker, launch * LAUNCH + 1, RETRY_S, HEARTBEAT_S)
        self.alive = True
        self.hangs = False  # its loop stands still; its heart beats
        self.departs = False  # its function ends with this step
        self.stays_dead = False  # nobody is started in its place
        self.started_s = world.agenda.now_s
        self.answers = 0  # to its contributions,
        self.answers_before = 0  # when the network healed
        self._not_finite = NOT_FINITE if "not finite" in world.plan.faults else 0.0
        self._epoch_batches = world.plan.epoch_batches
        self._made = world.oracle.made
        self._agenda = world.agenda
        self._random = world.random
        self._send = world.up[worker].send
        self._held: deque[Batch] = deque()
        self._computing = 0  # counts up with every step begun, and when one is dropped
        self._busy = False
        self._late = world.plan.strategy.adopt.late
        self._began = 0, False  # from which version, and whether an answer was on its way
        self._done = False  # it is computed, and waits for that
        self._payload = NO_PAYLOAD
        self._epoch = 0  # of the data
        self._timer_s = 0.0
        self._join()

    def now_s(self) -> float:
        """The time as this process measures it."""
        clock = self.clock
        return self._agenda.now_s * clock.rate + clock.offset_s

    @property
    def gets_on(self) -> bool:
        """Whether it ought to."""
        return self.alive and not self.hangs and not self.departs

    # What it does by itself

    def _join(self, _: object = None, __: object = None) -> None:
        if self.alive and self.session.phase is Phase.LOST:
            self._say(self.session.join(self.now_s()))

    def _next(self) -> None:
        """Begin with the next batch, or ask for more, or leave."""
        if self.departs:
            self._say(self.session.finish(self.now_s()))
            return
        if not self._held:
            self._say(self.session.ask(self._epoch, self._epoch_batches, LEASE_BATCHES, 0, self.now_s()))
            return
        self._begin()

    def _begin(self) -> None:
        self._computing += 1
        self._busy = True
        self._began = self.session.version, self.session.phase is Phase.WAITING
        agenda = self._agenda
        agenda.at(agenda.now_s + self.step_s * (0.5 + self._random()), self._computed, self._computing)

    def _computed(self, computing: int, _: object) -> None:
        if computing != self._computing or not self.alive or self.hangs:
            return
        self._busy = False
        if self.session.phase is Phase.WAITING:
            self._done = True
        else:
            self._push()

    def _push(self) -> None:
        session = self.session
        self._done = False
        epoch, batch = self._held.popleft()
        finite = not self._not_finite or self._random() >= self._not_finite
        place = epoch * self._epoch_batches + batch
        self._payload = len(self._made)
        began, in_flight = self._began
        self._made.append(Contribution(self.worker, session.incarnation, session.number, began, place, finite))
        rows = self._hand_in(self._payload, finite)
        self._say(session.push(1, 1, 1, finite, self.now_s(), int(in_flight), rows))
        if self._late and self._held and not self.departs:
            self._begin()

    def _hand_in(self, payload: int, finite: bool) -> bool:
        """Write what travels beside a contribution; whether it moves rows of tables."""
        return False

    def _say(self, letter: FromWorker) -> None:
        self._send(letter, self._payload)
        agenda = self._agenda
        if self._timer_s <= agenda.now_s:
            self._timer_s = agenda.now_s + HEARTBEAT_S
            agenda.at(self._timer_s, self._wake)

    def _wake(self, _: object, __: object) -> None:
        """Say again what nobody answered, or that this worker is alive."""
        if not self.alive or self.session.phase >= Phase.LOST:
            return
        letter = self.session.tick(self.now_s())
        if letter is not None:
            self._send(letter, self._payload)
        agenda, clock = self._agenda, self.clock
        due_s = (self.session.due_s - clock.offset_s) / clock.rate
        self._timer_s = max(due_s, agenda.now_s + LEAST_S)
        agenda.at(self._timer_s, self._wake)

    def reconnect(self) -> None:
        """Its connection was lost and made again."""
        letter = self.session.connected(self.now_s()) if self.alive else None
        if letter is not None:
            self._send(letter, self._payload)

    # What it is told

    def hear(self, letter: FromServer, life: int) -> None:
        """A letter that the server sent in that one of its lives arrived."""
        if not self.alive:
            return
        news = self.session.receive(letter)
        if news is not None:
            self._act(news, life)
        elif self.session.phase is Phase.FINISHED:
            self.alive = False

    def _act(self, news: News, life: int) -> None:
        kind = type(news)
        if kind is Lost:
            self._lost()
            return
        if kind is Welcome:
            assert isinstance(news, Welcome)
            self._drop()
            self.world.oracle.welcomed(self.session, news, life)
        else:
            self.world.oracle.heard(self.session, life)
        if kind is Grant or kind is Cancel:
            self.answers += 1
        elif kind is Leased:
            assert isinstance(news, Leased)
            self._held.extend(news.batches)
            self._epoch += not news.batches
        if self.hangs or self.session.phase is Phase.WAITING:  # called off while it asks for data: nothing to drop
            return
        if self._late and (self._busy or self._done):
            if self._done:
                self._push()
            return
        if kind is Cancel and self._busy:
            self._call_off()
        self._next()

    def _call_off(self) -> None:
        self._computing += 1
        self._busy = False
        self._held.popleft()
        self.session.abandon(1)

    def _lost(self) -> None:
        self._drop()
        if self.session.phase is Phase.SUPERSEDED:
            self.alive = False
        elif not self.hangs:
            agenda = self._agenda
            agenda.at(agenda.now_s + REJOIN_S * (1 + self._random()), self._join)

    def _drop(self) -> None:
        """What it computes and holds is the server's to give to others."""
        self._computing += 1
        self._busy = self._done = False
        self._held.clear()
        self._payload = NO_PAYLOAD
        self._epoch = 0
