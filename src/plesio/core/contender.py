"""A process that may lead: head or standby by turns, and a voter all the time.

    standby --elected--> head --fenced by a vote that came to nothing--> standby, which asks at once --elected--> head ...

It decides when to say what to all voters, and who votes: whoever answered lately. Its log is somebody else's business, who says
which standbys have all of it (`electable`), and of which head the log here is (`begins`). `plesio.core.headship` has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable

from plesio.core.headship import (
    ANYBODY,
    LEASE_S,
    Ask,
    Beat,
    Candidate,
    Fenced,
    Head,
    Leaves,
    NotYou,
    Promise,
    Vote,
    Voter,
)

SILENT_S = 1.5
"""A voter that answers nothing for so long is taken for dead, and has no vote any more."""
APART_S = 0.5
"""How much longer the second of those that may be elected waits than the first, and so on: else they split the votes."""
Message = Beat | Ask
Reply = Promise | Vote | NotYou | Fenced | Leaves


class Contender:
    """One such process.

    Args:
        name: its own, a number that no other process has.
        head: that it is at first, of a new run; None for a standby.
        voter: its own, and `candidate`, the class of what it is as a standby: for tests.

    Attributes:
        head: that it is, while it is one.

    >>> head = Contender(7, now_s=0.0, head=Head(7, term=1, voters={7}))
    >>> standby = Contender(8, now_s=0.0)
    >>> first = head.tick(now_s=0.0)  # it is alone
    >>> head.hear(8, standby.told(first, now_s=0.0), now_s=0.0); standby.begins(first.term, now_s=0.0)
    True
    >>> for now_s in (0.25, 0.5):
    ...     head.hear(8, standby.told(head.tick(now_s, electable={8}), now_s), now_s)
    >>> sorted(head.head.electable), sorted(head.head.voters), head.leads_until_s < 3
    ([8], [8], True)
    >>> ask = standby.tick(now_s=2.6)  # the head is lost
    >>> standby.head.term, standby.leads(2.6), head.leads(2.6)
    (2, True, False)
    """

    def __init__(
        self,
        name: int,
        now_s: float,
        head: Head | None = None,
        voter: Voter | None = None,
        candidate: type[Candidate] = Candidate,
    ) -> None:
        self.name, self.head = name, head
        self.voter = voter or Voter()
        self._kind = candidate
        self._candidate = candidate(name, now_s)  # what it is, or was before it became head
        self._heard_s: dict[int, float] = {}  # by voter: when it answered last
        self._leave = set[int]()  # voters that are about to end
        self._patience_s = 0.0
        if head is not None:
            self._candidate.begins(head.term, now_s)

    @property
    def term(self) -> int:
        """Of the head that it is; 0: it is none."""
        return self.head.term if self.head is not None else 0

    @property
    def changing(self) -> bool:
        """Whether it is head, and most do not know yet who votes now."""
        return self.head is not None and self.head.changing

    @property
    def awaits(self) -> frozenset[int]:
        """The standbys that an answer waits for under `acknowledge="standby"`. Who is no head answers nobody."""
        return self.head.awaits if self.head is not None else frozenset({ANYBODY})

    @property
    def leads_until_s(self) -> float:
        """Until when it may fold and answer, if it hears nothing more."""
        return self.head.leads_until_s if self.head is not None else float("-inf")

    def leads(self, now_s: float) -> bool:
        """Whether it may fold, and answer, at this moment."""
        return self.head is not None and self.head.leads(now_s)

    # As head or standby

    def tick(self, now_s: float, electable: Iterable[int] = (), luck: float = 0.0) -> Message | None:
        """What to say to all other voters now, and again and again; None: nothing.

        Args:
            electable: the standbys that have all that was answered.
            luck: a number from 0 to 1, by which those who split the votes do not go on doing so.
        """
        if self.head is not None and self.head.fenced:
            of = self._candidate.of | {self.head.term}
            self._candidate = self._kind(self.name, now_s, of, self.head.beat(now_s))
            self.head, self._patience_s = None, 0.0
        said = self._ask(now_s, luck) if self.head is None else self._beat(self.head, now_s, electable)
        if said is not None and (reply := self.voter.told(said, now_s)) is not None:
            self.hear(self.name, reply, now_s)
        return said

    def _beat(self, head: Head, now_s: float, electable: Iterable[int]) -> Beat:
        here = {voter for voter, heard_s in self._heard_s.items() if now_s - heard_s < SILENT_S}
        live = here - self._leave | {self.name}
        if head.leads(now_s):
            head.vote(self._odd(head, live), here)
        if head.promised_until_s >= now_s:  # from when it names one it needs promises
            head.elect(electable)
        return head.beat(now_s)

    def _odd(self, head: Head, live: set[int]) -> set[int]:
        """Of an even number one vote is of no use. This head's is left out: when its host dies, it is one less to do without. Not
        before those that are dead are."""
        return live if len(live) % 2 or not head.voters <= live else live - {self.name}

    def _ask(self, now_s: float, luck: float) -> Ask | None:
        term = self._candidate.term
        ask = self._candidate.ask(now_s, self._patience_s)
        if self._candidate.term != term:
            self._patience_s = luck * LEASE_S
        return ask

    def hear(self, voter: int, reply: Reply, now_s: float) -> None:
        """What this voter answered. It may make this process head."""
        self._heard_s[voter] = now_s
        match reply:
            case Leaves():
                self._leave.add(voter)
            case Promise() if self.head is not None:
                self.head.promised(voter, reply)
            case Fenced() if self.head is not None:
                self.head.heard_of(reply)
            case Vote() if self.head is None:
                self._candidate.voted(voter, reply)
                self._stands(now_s)
            case Fenced() | NotYou() if self.head is None:
                self._candidate.refused(voter, reply, now_s)

    def _stands(self, now_s: float) -> None:
        """Whether it is elected."""
        if (head := self._candidate.elected()) is not None:
            self.head = head
            self._heard_s |= dict.fromkeys(head.voters, now_s)

    def begins(self, term: int, now_s: float) -> bool:
        """The log here is that of this head from now on. Say so before that of another is given up. False: a later head is
        known, whose log it is to have."""
        return self.head is None and self._candidate.begins(term, now_s)

    def forgets(self) -> bool:
        """There is no log here from now on: this standby may not be elected, whatever beats say. False: it is by now."""
        if self.head is None:
            self._candidate.forgets()
        return self.head is None

    # As a voter

    def told(self, message: Message, now_s: float) -> Reply | None:
        """What another head or standby said, and what its voter here answers."""
        if isinstance(message, Beat):
            if self.head is not None:
                self.head.heard_of(Fenced(message.term))
            else:
                self._candidate.heard(message, now_s)
                before = [one for one in message.electable - {message.head} if one < self.name]
                self._patience_s = APART_S * len(before)
        return self.voter.told(message, now_s)
