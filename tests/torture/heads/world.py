"""One simulated run: hosts, their processes and the links between them; faults; and what must hold all the time.

| broken promise          | what it says                                                                     |
| ----------------------- | -------------------------------------------------------------------------------- |
| two heads               | nobody else leads when one folds or answers                                      |
| a term is one head's    | no two heads have the same number                                                |
| folded once             | no contribution stands twice in a log                                            |
| an answer holds         | under acknowledge="standby", who is elected has all that workers were answered   |
| somebody leads          | when all is mended, and most voters and one of those who may lead are there      |
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from plesio.core.headship import DRIFT, NONE, Candidate, Head, Voter, most
from torture.heads.actors import TICK_S, Actor, Leading, Worker

CHAOS_S, HEALED_S = 30.0, 60.0
BROKEN = ("two heads", "a term is one head's", "folded once", "an answer holds", "somebody leads")


@dataclass(frozen=True)
class Parts:
    """What a run is made of; a planted bug has one of its own."""

    voter: type[Voter] = Voter
    head: type[Head] = Head
    candidate: type[Candidate] = Candidate


@dataclass
class Outcome:
    """`broken`: which promise was, in the words of the table above and more; `folds`, `terms`: of all heads."""

    seed: int
    broken: str = ""
    folds: int = 0
    terms: int = 0
    story: list[str] = field(default_factory=list)


class BrokenError(Exception):
    """A promise was broken."""


class World:
    """Drawn from its seed: 1 to 6 workers and 1 or 2 standbys on 2 to 6 hosts, and what strikes them."""

    def __init__(self, seed: int, parts: Parts) -> None:
        self.parts, self.random = parts, random.Random(seed)
        rng = self.random
        self.now_s, self._order = 0.0, 0
        self._agenda: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self.outcome = Outcome(seed)
        self.acknowledges = rng.random() < 0.7
        self._hosts, self.standbys = rng.randint(2, 6), rng.choice((1, 2, 2))
        self._loss, self._slowest_s = rng.choice((0.0, 0.05, 0.3)), rng.choice((0.02, 0.2, 1.0))
        self._cut: set[tuple[int, int]] = set()
        self._answered: set[tuple[int, int]] = set()
        self._terms: dict[int, int] = {}
        self.actors: dict[int, Actor] = {}
        self.heads = list(range(1 + self.standbys))
        first = parts.head(0, 1, {0})
        for name in self.heads:
            self._starts(Leading(self, name, name % self._hosts, None if name else first))
        self.workers: set[int] = set()
        for _ in range(rng.randint(1, 6)):
            self._hire()
        self._stormy = rng.random() < 0.5  # head after head is lost for a while
        for _ in range(rng.randint(1, 6 if self._stormy else 25)):
            self.at(CHAOS_S * rng.random(), self._strikes)
        for place in range(1, 6 if self._stormy else 1):
            self.at(5 * place + rng.random(), self._loses_head)

    def _leading(self, name: int) -> Leading:
        one = self.actors[name]
        assert isinstance(one, Leading), "numbers of heads come first"
        return one

    def _starts(self, actor: Actor) -> None:
        self.actors[actor.name] = actor
        self.at(TICK_S * self.random.random(), self._tick, actor)

    def _hire(self) -> None:
        name = len(self.actors)
        self.workers = {*self.workers, name}
        self._starts(Worker(self, name, self.random.randrange(self._hosts)))

    def pace(self) -> float:
        return 1 + self.random.uniform(-DRIFT, DRIFT)

    # Time and letters

    def at(self, after_s: float, do: Any, *about: Any) -> None:
        self._order += 1
        heappush(self._agenda, (self.now_s + after_s, self._order, do, about))

    def _tick(self, actor: Actor) -> None:
        if actor.lives:
            actor.tick()
            self.at(TICK_S, self._whenever_it_runs, actor, self._tick, (actor,))

    def _whenever_it_runs(self, actor: Actor, do: Any, about: tuple[Any, ...]) -> None:
        """At once, or when it is no longer frozen."""
        if actor.thaws_s > self.now_s:
            self.at(actor.thaws_s - self.now_s, self._whenever_it_runs, actor, do, about)
        else:
            do(*about)

    def send(self, sender: Actor, to: int, what: Any) -> None:
        other = self.actors[to]
        if (sender.host, other.host) in self._cut or self.random.random() < self._loss:
            return
        takes_s = 0.001 + self._slowest_s * self.random.random() ** 4
        self.at(takes_s, self._whenever_it_runs, other, self._delivers, (other, sender.name, what))

    def _delivers(self, actor: Actor, sender: int, what: Any) -> None:
        if actor.lives:
            actor.hear(sender, what)

    # Faults

    def _strikes(self) -> None:
        if self.now_s < CHAOS_S:
            kills = [self._kills_worker] * 3 + [self._workers_leave] + [self._kills_host] * (not self._stormy)
            self.random.choice([self._cuts] * 3 + [self._freezes] * 3 + kills)(self.random.random() < 0.6)

    def _loses_head(self) -> None:
        """It is frozen, or cut off, for long enough that a standby asks for votes."""
        head, lasts_s = self._victim(a_head=True), self.random.uniform(2.5, 5.0)
        if self.random.random() < 0.5:
            self._freeze(head, lasts_s)
        else:
            lines = {(head.host, other) for other in range(self._hosts) if other != head.host}
            self._cut_for(lasts_s, lines | {(other, one) for one, other in lines})

    def _tells(self, words: str) -> None:
        self.outcome.story.append(f"{self.now_s:6.2f} s  {words}")

    def _victim(self, a_head: bool) -> Actor:
        """One of those who lead, if that is asked for and there is one."""
        all_of = [one for one in self.actors.values() if one.lives]
        leading = [one for one in all_of if isinstance(one, Leading) and one.head is not None]
        return self.random.choice(leading if a_head and leading else all_of or list(self.actors.values()))

    def _cuts(self, a_head: bool) -> None:
        one, lasts_s = self._victim(a_head).host, self.random.choice((1.0, 4.0, 8.0)) * self.random.random()
        both = self.random.random() < 0.7
        lines = {(one, other) for other in range(self._hosts) if other != one and self.random.random() < 0.8}
        self._cut_for(lasts_s, lines | ({(other, one) for one, other in lines} if both else set()))

    def _cut_for(self, lasts_s: float, lines: set[tuple[int, int]]) -> None:
        self._tells(f"{sorted(lines)} are cut for {lasts_s:.1f} s")
        self._cut |= lines
        self.at(lasts_s, self._cut.difference_update, lines)

    def _freezes(self, a_head: bool) -> None:
        self._freeze(self._victim(a_head), 6 * self.random.random())

    def _freeze(self, actor: Actor, lasts_s: float) -> None:
        actor.thaws_s = self.now_s + lasts_s
        self._tells(f"process {actor.name} freezes until {actor.thaws_s:.2f} s")

    def _kills_worker(self, _: bool) -> None:
        self._kill([self.actors[self.random.choice(sorted(self.workers))]])

    def _workers_leave(self, _: bool) -> None:
        """Some end in good order, all at once; it takes them a moment."""
        some = self.random.sample(sorted(self.workers), self.random.randint(1, len(self.workers)))
        leaving = [one for one in map(self.actors.__getitem__, some) if isinstance(one, Worker)]
        for one in leaving:
            one.leaves = True
        self._tells(f"processes {some} are about to end")
        self.at(2.0, self._kill, leaving)

    def _kills_host(self, a_head: bool) -> None:
        host = self._victim(a_head).host
        self._tells(f"host {host} dies")
        self._kill([one for one in self.actors.values() if one.host == host])

    def _kill(self, victims: list[Actor]) -> None:
        """Another worker comes for each, sooner or later."""
        for one in victims:
            if one.lives and isinstance(one, Worker):
                self.at(2 * self.random.random(), self._hire)
            one.lives = False
        self._tells(f"processes {[one.name for one in victims]} die")

    def _heal(self) -> None:
        self._cut.clear()
        self._loss, self._slowest_s = 0.0, 0.02
        for one in self.actors.values():
            one.thaws_s = min(one.thaws_s, self.now_s)
        self._tells("all is mended")

    # What must hold

    def elected(self, head: Leading) -> None:
        self._tells(f"process {head.name} is head of term {head.term}, with {len(head.log)} folds")
        self.outcome.terms += 1
        if self.random.random() < 0.7:  # a head that is new knows little of who has what
            self.at(1.5 * self.random.random() ** 3, self._strikes)
        if self._terms.setdefault(head.term, head.name) != head.name:
            raise BrokenError(f"a term is one head's: {head.term} is of {self._terms[head.term]} and {head.name}")
        if self.acknowledges and (lacks := self._answered - set(head.log)):
            raise BrokenError(f"an answer holds: process {head.name} is elected without {sorted(lacks)[:3]}")

    def folded(self, head: Leading) -> None:
        self.outcome.folds += 1
        self._nobody_else(head)
        if len(set(head.log)) < len(head.log):
            raise BrokenError(f"folded once: {head.log[-1]}")

    def acknowledged(self, worker: int, number: int) -> None:
        self._answered.add((worker, number))

    def _nobody_else(self, head: Leading) -> None:
        for name in self.heads:
            other = self._leading(name)
            if other is not head and other.lives and other.leads:
                raise BrokenError(f"two heads: process {head.name} of term {head.term} folds while {name} leads")

    def _could_go_on(self) -> bool:
        """Whether one who may lead is there, and has most voters, as far as these know who votes."""
        lives = [one for one in self.actors.values() if one.lives and not one.leaves]
        lasts = {one.name: one.voter.last for one in lives if isinstance(one, Worker | Leading)}
        for one in lives:
            if isinstance(one, Leading):
                leads = one.head is not None and not one.head.fenced
                leads &= all(last.term <= one.term for last in lasts.values())  # else it is fenced, and does not know
                if leads and one.head is not None and one.head.alone:
                    return True
                would = {name: last for name, last in lasts.items() if leads or one.name in last.electable}
                newest = max(would.values(), key=lambda last: (last.term, last.number), default=NONE)
                if most(newest.voters, would):
                    return True
        return False

    def run(self) -> Outcome:
        self.at(CHAOS_S, self._heal)
        try:
            self._until(CHAOS_S + 1.0)
            could, folds = self._could_go_on(), self.outcome.folds
            while self.now_s < CHAOS_S + HEALED_S and self.outcome.folds == folds:
                self._until(self.now_s + 1.0)
            if could and self.outcome.folds == folds:
                raise BrokenError("somebody leads: nothing was folded after all was mended")
        except BrokenError as broken:
            self.outcome.broken = str(broken)
            self._tells(str(broken))
        return self.outcome

    def _until(self, end_s: float) -> None:
        while self._agenda and self._agenda[0][0] <= end_s:
            self.now_s, _, do, about = heappop(self._agenda)
            do(*about)
        self.now_s = end_s


def run(seed: int, parts: Parts | None = None) -> Outcome:
    """Simulate one."""
    return World(seed, parts or Parts()).run()
