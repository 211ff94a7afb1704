"""Who is head: one process at a time, though hosts die, and links are cut and come together again.

Theory. Those who vote decide, by majority: the workers, the head and its standbys. A head leads while most of them promise not
to vote. That is a leader lease (Gray and Cheriton 1989). Terms, votes and the change of one voter at a time are Raft's (Ongaro
and Ousterhout 2014). Each head has a *term*, a number that fences all heads before it (docs/decisions/0020-standby.md).

    head --- Beat(term 1) ---> worker      "for 2 s I vote for nobody"
         <-- Promise --------
         x  (cut off)                      standby --- Ask(term 2) ---> worker     once 2 s without a beat are over
                                                   <-- Vote -----------            "I follow term 2, and refuse term 1"

| who     | may                                                    | until                                                   |
| ------- | ------------------------------------------------------ | ------------------------------------------------------- |
| head    | fold and answer, while `Head.leads`                    | most promises are too old; for good when it is fenced   |
| standby | ask for votes, when it has heard nothing for a lease   | it has the votes of most (`Candidate.elected`)          |
| voter   | vote once a term, when no promise of its own holds     | its process ends: another in its place is another voter |

Each process has a name, a number that no other has, before or after: it votes by that, and is elected.

1. A promise counts from when its beat was *sent*, by the head's clock, and is kept from when the beat came, by the voter's. So no
   clock is compared with another. Their paces may be wrong by `DRIFT`; the head goes by a lease that is shorter by that.
2. A beat names who votes and which standbys may be elected. The voters change by one at a time, and not before most know of the
   last change: then any two majorities have a voter in common. So nobody has to know what a voter that died had promised.
3. The first head of a run leads without promises until a beat of it names a standby: nobody else can be elected before. So a run
   without a standby never stands still, and its voters may change all at once.
4. Under `acknowledge="standby"` an answer waits for each standby that might be elected (`Head.awaits`), so whoever is elected has
   what was answered. One that is lost is waited for until most voters have promised a beat that does not name it. Whoever is
   elected cannot know all that others named, so it waits for `ANYBODY`, until most have promised its first beat.

Promises: two heads never lead at once; under "standby" whoever is elected has all that a worker was answered. Where no majority
reaches a head or a standby nobody leads: the run stands still rather than that two go on. `tests/torture/heads` tries this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

LEASE_S = 2.0
"""How long a voter keeps its promise."""
DRIFT = 0.1
"""By how much the pace of a clock may be wrong."""
HEAD_S = LEASE_S * (1 - DRIFT) / (1 + DRIFT)
"""How long a head counts on a promise, from when it sent the beat."""


ASKS_S = LEASE_S / 2
"""For how long a candidate asks for the votes of one term."""


class Beat(msgspec.Struct, tag=True, frozen=True):
    """The `head` to a voter. `number`: of this beat, within its `term`; `voters`: who votes; `electable`: who may be elected
    next, the head itself among them, should it be fenced by a vote that comes to nothing."""

    term: int
    number: int
    head: int
    voters: frozenset[int]
    electable: frozenset[int]


class Promise(msgspec.Struct, tag=True, frozen=True):
    """A voter to the head whose beat came."""

    term: int
    number: int


class Ask(msgspec.Struct, tag=True, frozen=True):
    """A standby to a voter: vote for me. `of`: the terms of whose heads it has the log; `last`: the newest beat of the last of
    them, which the voter may not have heard."""

    term: int
    standby: int
    of: frozenset[int]
    last: Beat


class Vote(msgspec.Struct, tag=True, frozen=True):
    """A voter to the standby that asked. `last`: the newest beat that came to it."""

    term: int
    last: Beat


class NotYou(msgspec.Struct, tag=True, frozen=True):
    """A voter to a standby that it may not elect: by its newest beat another is to be."""

    term: int


class Fenced(msgspec.Struct, tag=True, frozen=True):
    """A voter to whoever has a lower `term` than it follows."""

    term: int


class Leaves(msgspec.Struct, tag=True, frozen=True):
    """A voter that is about to end: do without its vote."""


NONE = Beat(0, 0, -1, frozenset(), frozenset())
ANYBODY = -1
"""In place of a standby's name: one that somebody may elect yet, whoever it is."""


def most(voters: Collection[int], said: Iterable[int]) -> bool:
    """Whether most of the voters said so.

    >>> most({1, 2, 3}, [2, 3, 9]), most({1, 2}, [1])
    (True, False)
    """
    return 2 * len(set(voters) & set(said)) > len(voters)


def newest(beats: Iterable[Beat]) -> Beat:
    """The one that tells most."""
    return max(beats, key=lambda beat: (beat.term, beat.number), default=NONE)


class Voter:
    """What one process has promised.

    Attributes:
        term: of the head that it follows, or has voted for.
        last: the newest beat that came.

    >>> worker, first = Voter(), Beat(1, 1, head=1, voters=frozenset({7}), electable=frozenset({0, 1}))
    >>> worker.beat(first, now_s=3.0)
    Promise(term=1, number=1)
    >>> ask = Ask(2, standby=0, of=frozenset({1}), last=first)
    >>> worker.asked(ask, now_s=4.9), worker.asked(ask, now_s=5.1).term
    (None, 2)
    >>> worker.beat(Beat(1, 2, head=1, voters=frozenset({7}), electable=frozenset()), now_s=5.2)
    Fenced(term=2)
    """

    def __init__(self) -> None:
        self.term = 0
        self.last = NONE
        self._voted: Ask | None = None
        self._to, self._free_s = -1, 0.0  # to whom it promised not to vote for others, and until when

    def told(self, message: Beat | Ask, now_s: float) -> Promise | Vote | NotYou | Fenced | None:
        """Either came."""
        return self.beat(message, now_s) if isinstance(message, Beat) else self.asked(message, now_s)

    def beat(self, beat: Beat, now_s: float) -> Promise | Fenced:
        """A beat came."""
        if beat.term < self.term:
            return Fenced(self.term)
        self.term = beat.term
        self.last = newest([self.last, beat])
        self._to, self._free_s = beat.head, now_s + LEASE_S
        return Promise(beat.term, beat.number)

    def asked(self, ask: Ask, now_s: float) -> Vote | NotYou | Fenced | None:
        """A standby asks. None: not now."""
        if ask.term < self.term:
            return Fenced(self.term)
        self.last = newest([self.last, ask.last])
        if ask != self._voted:  # else it did, and says so again
            has_all = self.last.term in ask.of and ask.standby in self.last.electable
            if not has_all:
                return NotYou(ask.term) if self.last.term else None
            if ask.term == self.term or (now_s < self._free_s and ask.standby != self._to):
                return None
            self.term, self._voted = ask.term, ask
            self._to, self._free_s = ask.standby, now_s + LEASE_S
        return Vote(ask.term, self.last)


class Head:
    """Whether one head may lead.

    Args:
        name: a number that no other process has.
        term: larger than that of any head before.
        voters: who votes at first.
        votes: by voter, when it was asked for the vote that it gave; None for the first head of a run.

    Attributes:
        alone: nobody else can be elected: it is the first head, and has named no standby.
        voters, electable: what the next beat names; of `electable` all but itself.
        fenced: a voter follows a later term: this head never leads again, unless it is elected anew.

    >>> head = Head(0, term=1, voters={0, 1, 2})
    >>> head.leads(0.0), head.elect({1}), head.leads(0.0)
    (True, None, False)
    >>> beat = head.beat(now_s=0.0)
    >>> head.promised(0, Promise(1, beat.number)); head.leads(0.1)
    False
    >>> head.promised(1, Promise(1, beat.number)); head.leads(0.1), head.leads(1.7)
    (True, False)
    """

    def __init__(
        self,
        name: int,
        term: int,
        voters: Iterable[int],
        votes: dict[int, float] | None = None,
    ) -> None:
        self.name = name
        self.term = term
        self.voters = self._before = frozenset(voters)
        self.electable: frozenset[int] = frozenset()
        self.alone = votes is None
        self.fenced = False
        self._number = 0
        self._changed = 1  # the first beat that names these voters; until most have it, those of before count, too
        self._sent_s: dict[int, float] = {}
        self._since_s = dict(votes or {})
        self._promised: dict[int, int] = {}  # by voter: the last beat that it promised
        self._dropped = {} if self.alone else {ANYBODY: 1}  # which beat is the first that does not name them

    @property
    def awaits(self) -> frozenset[int]:
        """The standbys that an answer waits for under `acknowledge="standby"`: those that might be elected."""
        return self.electable | self._dropped.keys()

    def beat(self, now_s: float) -> Beat:
        """What to send to all voters now."""
        self._number += 1
        self._sent_s[self._number] = now_s
        self._sent_s.pop(next(iter(self._sent_s)) if len(self._sent_s) > 100 else 0, None)
        return Beat(self.term, self._number, self.name, self.voters, self.electable | {self.name})

    def promised(self, voter: int, promise: Promise) -> None:
        """It came from this voter."""
        if promise.term != self.term or promise.number <= self._promised.get(voter, 0):
            return
        self._promised[voter] = promise.number
        if (sent_s := self._sent_s.get(promise.number)) is not None:
            self._since_s[voter] = max(sent_s, self._since_s.get(voter, sent_s))
        if self._known(self._changed):
            self._before = self.voters
        self._dropped = {standby: first for standby, first in self._dropped.items() if not self._known(first)}

    def _known(self, number: int) -> bool:
        """Whether most voters have promised this beat, or a later one."""
        return most(self.voters, [voter for voter, last in self._promised.items() if last >= number])

    def heard_of(self, fenced: Fenced) -> None:
        """A voter follows another head."""
        self.fenced |= fenced.term > self.term

    def leads(self, now_s: float) -> bool:
        """Whether it may fold, and answer, at this moment."""
        return now_s <= self.leads_until_s

    @property
    def leads_until_s(self) -> float:
        """Until when it may if it hears nothing more."""
        if self.fenced:
            return float("-inf")
        return float("inf") if self.alone else self.promised_until_s

    @property
    def promised_until_s(self) -> float:
        """Until when it may count on the promises of most."""
        return HEAD_S + min(self._most_since_s(self.voters), self._most_since_s(self._before))

    def _most_since_s(self, voters: frozenset[int]) -> float:
        """The oldest of the promises that make most of these, if these are the newest."""
        since_s = sorted((self._since_s.get(voter, float("-inf")) for voter in voters), reverse=True)
        return since_s[len(since_s) // 2]

    def elect(self, standbys: Iterable[int]) -> None:
        """From the next beat on these may be elected. One that joins has all that was answered."""
        now = frozenset(standbys)
        self.alone &= not now
        self._dropped |= dict.fromkeys(self.electable - now, self._number + 1)
        self._dropped = {standby: first for standby, first in self._dropped.items() if standby not in now}
        self.electable = now

    @property
    def changing(self) -> bool:
        """Whether voters changed, and most do not know yet."""
        return self._before != self.voters

    def vote(self, voters: Iterable[int], here: Iterable[int] = ()) -> None:
        """These are to vote. They become so one at a time: call it again and again. The last one stays. Who is gone does, too, as
        long as so few are here that the others would have to come back. `here`: who answers beside them, and is to leave. Of a
        head that is alone they become so at once."""
        wanted = frozenset(voters)
        answering = wanted.union(here)
        if self.alone and wanted:
            self.voters = self._before = wanted
            self._changed = self._number + 1
            return
        if self.changing or not wanted or not self._known(self._changed):
            return
        if joins := wanted - self.voters:
            self.voters |= {min(joins)}
        elif (leaves := self.voters - wanted) and most(without := self.voters - {min(leaves)}, answering):
            self.voters = without
        else:
            return
        self._changed = self._number + 1


class Candidate:
    """A standby that would be head if the head was lost.

    Args:
        name: a number that no other process has.
        of: the terms of whose heads it has the log. A head that was fenced has its own, and what it was elected with; it asks
            at once. `last`: its last beat.

    Attributes:
        term: the highest that it has seen.

    >>> standby, worker = Candidate(1, now_s=0.0), Voter()
    >>> beat = Beat(1, 1, head=0, voters=frozenset({7}), electable=frozenset({0, 1}))
    >>> _ = worker.beat(beat, now_s=1.0); standby.heard(beat, now_s=1.0); standby.begins(1, now_s=1.0)
    True
    >>> print(standby.ask(now_s=2.9)); (ask := standby.ask(now_s=3.1)).term
    None
    2
    >>> standby.voted(7, worker.asked(ask, now_s=3.1)); standby.elected().term
    2
    """

    def __init__(self, name: int, now_s: float, of: Iterable[int] = (), last: Beat = NONE) -> None:
        self.name = name
        self.of, self._last = frozenset(of), last
        self.term = self._known = max(self.of, default=0)  # of a head: it asked for others perhaps, in vain
        self._quiet_s = now_s if self.of else now_s + LEASE_S
        self._asked: Ask | None = None
        self._asked_s = float("-inf")
        self._votes: dict[int, Beat] = {}
        self._refusals: set[int] = set()

    def heard(self, beat: Beat, now_s: float) -> None:
        """The head spoke."""
        if beat.term >= self._known:
            self._last = newest([self._last, beat])
            self._knows(beat.term, now_s)

    def begins(self, term: int, now_s: float) -> bool:
        """The log that it has is this head's from now on, and of none before. False, and nothing, if it knows a later head."""
        if term < self._known:
            return False
        self._knows(term, now_s)
        self.of = self.of if term in self.of else frozenset({term})
        return True

    def _knows(self, term: int, now_s: float) -> None:
        """There is the head of this term."""
        self._known, self.term = term, max(self.term, term)
        self._quiet_s, self._asked = now_s + LEASE_S, None

    def forgets(self) -> None:
        """It has no log for now, and may not be elected."""
        self.of, self._asked = frozenset(), None

    def ask(self, now_s: float, patience_s: float = 0.0) -> Ask | None:
        """What to send to all voters, again and again; None: not now. `patience_s`: how much longer than a lease it waits, drawn
        anew after each term that it asks for, so that two who split the votes do not go on doing so."""
        if now_s > self._quiet_s + patience_s and self.of:
            self.term += 1
            self._quiet_s = now_s + LEASE_S
            self._asked, self._asked_s = Ask(self.term, self.name, self.of, self._last), now_s
            self._votes, self._refusals = {}, set()
        return self._asked if now_s < self._asked_s + ASKS_S else None

    def voted(self, voter: int, vote: Vote) -> None:
        """It came from this voter."""
        if self._asked is not None and vote.term == self._asked.term:
            self._votes[voter] = vote.last

    def refused(self, voter: int, why: Fenced | NotYou, now_s: float) -> None:
        """This voter has seen a higher term, or may not elect this standby. Where more may not than do, another asks first."""
        self.term = max(self.term, why.term)
        if isinstance(why, NotYou):
            self._refusals.add(voter)
            if len(self._refusals) >= len(self._newest.voters & self._votes.keys()):
                self._quiet_s = max(self._quiet_s, now_s + 2 * LEASE_S)

    def elected(self) -> Head | None:
        """The head that this candidate is now, if it is."""
        if self._asked is None or not most(voters := self._newest.voters, self._votes):
            return None
        return Head(self.name, self._asked.term, voters, dict.fromkeys(self._votes, self._asked_s))

    @property
    def _newest(self) -> Beat:
        """The newest beat that those who voted know."""
        return newest(self._votes.values())
