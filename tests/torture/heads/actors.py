"""The processes of a simulated run, reduced to who is head: what is folded is a number a contribution.

Whoever is head folds what comes while it leads, and answers when all that are to have it do. Its standby has its log. Workers
send until they are answered by whom they follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from plesio.core.headship import LEASE_S, NONE, Ask, Beat, Candidate, Fenced, Head, NotYou, Promise, Vote

if TYPE_CHECKING:
    from torture.heads.world import World

TICK_S = 0.25
SILENT_S = 1.5
"""After which a process is taken for dead, and has no part any more."""


class Pushed(msgspec.Struct, frozen=True):
    """A worker to the head that it follows: its next contribution."""

    number: int


class Answered(msgspec.Struct, frozen=True):
    term: int
    number: int


class Log(msgspec.Struct, frozen=True):
    """A head to a standby: its beat, and what was folded, from this place on."""

    beat: Beat
    begins: int
    folds: tuple[tuple[int, int], ...]


class Has(msgspec.Struct, frozen=True):
    """A standby to the head: how much of its log it has."""

    term: int
    folds: int


class Actor:
    """One process. `name`: a number that no other process has, before or after. Its clock has an offset and a pace of its own."""

    def __init__(self, world: World, name: int, host: int) -> None:
        self.world, self.name, self.host = world, name, host
        self.lives, self.thaws_s = True, 0.0
        self._offset_s, self._pace = 100 * world.random.random(), world.pace()

    def now_s(self) -> float:
        return self._offset_s + self._pace * self.world.now_s

    def say(self, to: int, what: Any) -> None:
        self.world.send(self, to, what)

    def tick(self) -> None: ...

    def hear(self, sender: int, what: Any) -> None: ...


class Worker(Actor):
    """`follows`: the process whose beat came last."""

    def __init__(self, world: World, name: int, host: int) -> None:
        super().__init__(world, name, host)
        self.voter = world.parts.voter()
        self._follows = -1
        self._number = 1

    def tick(self) -> None:
        for head in [self._follows] if self._follows >= 0 else self.world.heads:
            self.say(head, Pushed(self._number))

    def hear(self, sender: int, what: Any) -> None:
        match what:
            case Beat():
                reply = self.voter.beat(what, self.now_s())
                self._follows = sender if isinstance(reply, Promise) else self._follows
                self.say(sender, reply)
            case Ask() if (vote := self.voter.asked(what, self.now_s())) is not None:
                self._follows = sender if isinstance(vote, Vote) else self._follows
                self.say(sender, vote)
            case Answered(term, number) if term == self.voter.term and number == self._number:
                self.world.acknowledged(self.name, number)
                self._number += 1


class Leading(Actor):
    """A head or a standby: it is one of them, or none any more."""

    def __init__(self, world: World, name: int, host: int) -> None:
        super().__init__(world, name, host)
        self.log: list[tuple[int, int]] = []
        self.term = 0  # of the head that it is, or whose log it has
        self._of: set[int] = set()
        self.head: Head | None = None
        self.candidate: Candidate | None = None
        self._heard_s: dict[int, float] = {}
        self._has: dict[int, int] = {}
        self._waits: dict[
            int, tuple[int, int]
        ] = {}  # by worker: contribution, and up to where the log is to be elsewhere
        self._told = 0  # up to where workers were answered
        self._patience_s = 0.0

    def stand_by(self) -> None:
        last = self.head.beat(self.now_s()) if self.head is not None else NONE
        self.head = None
        self._patience_s = 0.0 if self._of else LEASE_S * self.world.random.random()
        self.candidate = self.world.parts.candidate(self.name, len(self.world.heads), self.now_s(), self._of, last)

    def lead(self, head: Head) -> None:
        self._of = {head.term} | (self.candidate.of if self.candidate is not None else set())
        self.head, self.candidate, self.term = head, None, head.term
        self._has, self._waits, self._told = {}, {}, len(self.log)
        self._heard_s = dict.fromkeys(head.voters, self.now_s())
        self.world.elected(self)

    @property
    def leads(self) -> bool:
        return self.head is not None and self.head.leads(self.now_s())

    def tick(self) -> None:
        if self.head is not None and self.head.fenced:
            self.stand_by()
        if self.head is not None:
            self._tick_as_head(self.head)
        elif self.candidate is not None:
            self._tick_as_standby(self.candidate)

    def _tick_as_head(self, head: Head) -> None:
        now_s = self.now_s()
        live = {name for name, heard_s in self._heard_s.items() if now_s - heard_s < SILENT_S}
        if self.leads:
            head.vote(live & self.world.workers)
            needs = self._told if self.world.acknowledges else 0
            head.elect(one for one in live if self._has.get(one, -1) >= needs)
        beat = head.beat(now_s)
        for worker in self.world.workers:
            self.say(worker, beat)
        for one in self.world.heads:
            begins = self._has.get(one, 0)
            if one != self.name:
                self.say(one, Log(beat, begins, tuple(self.log[begins : begins + 50])))
        self._answer()

    def _tick_as_standby(self, candidate: Candidate) -> None:
        term = candidate.term
        if (ask := candidate.ask(self.now_s(), self._patience_s)) is not None:
            if candidate.term != term:
                self._patience_s = LEASE_S * self.world.random.random()
            for worker in self.world.workers:
                self.say(worker, ask)

    def hear(self, sender: int, what: Any) -> None:
        if self.head is not None:
            self._hear_as_head(self.head, sender, what)
        elif self.candidate is not None:
            self._hear_as_standby(self.candidate, sender, what)

    def _hear_as_head(self, head: Head, sender: int, what: Any) -> None:
        if isinstance(what, Fenced):
            head.heard_of(what)
            return
        if isinstance(what, Log) and what.beat.term > head.term:
            head.heard_of(Fenced(what.beat.term))
            return
        self._heard_s[sender] = self.now_s()
        match what:
            case Promise():
                head.promised(sender, what)
            case Has(term, folds) if term == head.term:
                self._has[sender] = max(folds, self._has.get(sender, 0))
                self._answer()
            case Pushed(number) if self.leads:
                self._fold(sender, number)

    def _fold(self, worker: int, number: int) -> None:
        if (worker, number) not in self.log:
            self.log.append((worker, number))
            self.world.folded(self)
        self._waits[worker] = (number, 1 + self.log.index((worker, number)))
        self._answer()

    def _answer(self) -> None:
        """Answer those whose contributions are wherever they have to be."""
        if not self.leads:
            return
        assert self.head is not None, "it leads"
        awaits = self.head.awaits if self.world.acknowledges else ()
        there = min((self._has.get(one, 0) for one in awaits), default=len(self.log))
        for worker, (number, place) in list(self._waits.items()):
            if place <= there:
                self._told = max(place, self._told)
                self.say(worker, Answered(self.head.term, number))
                del self._waits[worker]

    def _hear_as_standby(self, candidate: Candidate, sender: int, what: Any) -> None:
        match what:
            case Log(beat, begins, folds) if beat.term >= candidate.term:
                candidate.heard(beat, self.now_s())
                if (term := beat.term) > self.term:  # another head, whose log it has from the beginning
                    self.term, self.log = term, []
                if begins <= len(self.log):
                    self.log[begins:] = folds if begins + len(folds) >= len(self.log) else self.log[begins:]
                self.say(sender, Has(term, len(self.log)))
            case Vote():
                candidate.voted(sender, what)
                if (head := candidate.elected()) is not None:
                    self.lead(head)
            case Fenced() | NotYou():
                candidate.refused(sender, what, self.now_s())
