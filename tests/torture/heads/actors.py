"""The processes of a simulated run, reduced to who is head: what is folded is a number a contribution.

Whoever is head folds what comes while it leads, and answers when all that are to have it do. Its standby has its log. Workers
send until they are answered by whom they follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from plesio.core.contender import SILENT_S, Contender
from plesio.core.headship import Ask, Beat, Fenced, Head, Leaves, NotYou, Promise, Vote

if TYPE_CHECKING:
    from torture.heads.world import World

TICK_S = 0.25


class Pushed(msgspec.Struct, frozen=True):
    """A worker to the head that it follows: its next contribution."""

    number: int


class Answered(msgspec.Struct, frozen=True):
    term: int
    number: int


class Log(msgspec.Struct, frozen=True):
    """A head to a standby: what was folded, from this place on."""

    term: int
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
        self.lives, self.leaves, self.thaws_s = True, False, 0.0
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
            case Beat() | Ask() if (reply := self.voter.told(what, self.now_s())) is not None:
                self._follows = sender if isinstance(reply, Promise | Vote) else self._follows
                self.say(sender, reply)
                if self.leaves:
                    self.say(sender, Leaves())
            case Answered(term, number) if term == self.voter.term and number == self._number:
                self.world.acknowledged(self.name, number)
                self._number += 1


class Leading(Actor):
    """A head or a standby, and its log."""

    def __init__(self, world: World, name: int, host: int, head: Head | None = None) -> None:
        super().__init__(world, name, host)
        self.contender = Contender(name, self.now_s(), head, world.parts.voter(), world.parts.candidate)
        self.voter = self.contender.voter
        self.log: list[tuple[int, int]] = []
        self.term = 0  # of the head that it is, or whose log it has
        self._heard_s: dict[int, float] = {}
        self._has: dict[int, int] = {}
        self._waits: dict[
            int, tuple[int, int]
        ] = {}  # by worker: contribution, and up to where the log is to be elsewhere
        self._told = 0  # up to where workers were answered

    @property
    def head(self) -> Head | None:
        return self.contender.head

    @property
    def leads(self) -> bool:
        return self.contender.leads(self.now_s())

    def _may_lead(self) -> None:
        """Begin to, if it was elected."""
        if self.head is not None and self.head.term != self.term:
            self.term = self.head.term
            self._has, self._waits, self._told = {}, {}, len(self.log)
            self.world.elected(self)

    def tick(self) -> None:
        self._may_lead()
        now_s = self.now_s()
        needs = self._told if self.world.acknowledges else 0
        live = [name for name, heard_s in self._heard_s.items() if now_s - heard_s < SILENT_S]
        electable = [one for one in live if self._has.get(one, -1) >= needs]
        if (said := self.contender.tick(now_s, electable, self.world.random.random())) is not None:
            for other in (self.world.workers | set(self.world.heads)) - {self.name}:
                self.say(other, said)
        self._may_lead()
        if self.head is not None:
            self._send_log(self.head)
            self._answer()

    def _send_log(self, head: Head) -> None:
        for one in self.world.heads:
            begins = self._has.get(one, 0)
            if one != self.name:
                self.say(one, Log(head.term, begins, tuple(self.log[begins : begins + 50])))

    def hear(self, sender: int, what: Any) -> None:
        match what:
            case Beat() | Ask():
                if (reply := self.contender.told(what, self.now_s())) is not None:
                    self.say(sender, reply)
            case Promise() | Vote() | NotYou() | Fenced() | Leaves():
                self.contender.hear(sender, what, self.now_s())
                self._may_lead()
            case Log(term, begins, folds) if self.contender.begins(term, self.now_s()):
                if term > self.term:  # another head, whose log it has from the beginning
                    self.term, self.log = term, []
                if begins <= len(self.log):
                    self.log[begins:] = folds if begins + len(folds) >= len(self.log) else self.log[begins:]
                self.say(sender, Has(term, len(self.log)))
            case Has(term, folds) if self.head is not None and term == self.head.term:
                self._heard_s[sender] = self.now_s()
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
