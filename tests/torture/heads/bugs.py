"""Faults planted in the rules of who is head: each breaks a promise within some seeds."""

from __future__ import annotations

from collections.abc import Iterable

from plesio.core.headship import LEASE_S, Ask, Beat, Candidate, Fenced, Head, NotYou, Promise, Vote, Voter, most
from torture.heads.world import Parts


class Forgets(Voter):
    """It votes though it promised not to."""

    def asked(self, ask: Ask, now_s: float) -> Vote | NotYou | Fenced | None:
        self._free_s = 0.0
        return super().asked(ask, now_s)


class FollowsAny(Voter):
    """A head of before is as good as its successor."""

    def beat(self, beat: Beat, now_s: float) -> Promise | Fenced:
        self.term = min(self.term, beat.term)
        return super().beat(beat, now_s)


class ElectsAny(Voter):
    """It votes for a standby that no beat names."""

    def asked(self, ask: Ask, now_s: float) -> Vote | NotYou | Fenced | None:
        self.last = Beat(self.last.term, self.last.number, -1, self.last.voters, frozenset(range(9)))
        return super().asked(ask, now_s)


class CountsLong(Head):
    """It counts on promises for twice as long as they are kept."""

    def leads(self, now_s: float) -> bool:
        return super().leads(now_s - LEASE_S)


class NeverFenced(Head):
    """It counts on each promise for ever."""

    def leads(self, now_s: float) -> bool:
        return most(self.voters, self._since_s)


class ChangesAll(Head):
    """The voters become others at once."""

    def vote(self, voters: Iterable[int], here: Iterable[int] = ()) -> None:
        self.voters = self._before = frozenset(voters) or self.voters


class WaitsForNoneLost(Head):
    """A standby that is lost is not waited for, though it may be elected."""

    def elect(self, standbys: Iterable[int]) -> None:
        super().elect(standbys)
        self._dropped = {}


class StaysAlone(Head):
    """It leads without promises though it named a standby."""

    def elect(self, standbys: Iterable[int]) -> None:
        super().elect(standbys)
        self.alone = True


class ElectedByHalf(Candidate):
    """Half of the voters are enough."""

    def elected(self) -> Head | None:
        if self._asked is None or not self._votes:
            return None
        newest = max(self._votes.values(), key=lambda beat: (beat.term, beat.number))
        if 2 * len(newest.voters & self._votes.keys()) < len(newest.voters):
            return None
        return Head(self.name, self._asked.term, self._votes, dict.fromkeys(self._votes, self._asked_s))


PLANTED: dict[str, tuple[Parts, tuple[str, ...]]] = {
    "votes against its promise": (Parts(voter=Forgets), ("two heads", "an answer holds")),
    "follows any term": (Parts(voter=FollowsAny), ("two heads", "an answer holds")),
    "elects whom no beat names": (Parts(voter=ElectsAny), ("two heads", "an answer holds")),
    "counts on a promise for too long": (Parts(head=CountsLong), ("two heads",)),
    "counts on a promise for ever": (Parts(head=NeverFenced), ("two heads",)),
    "all voters change at once": (Parts(head=ChangesAll), ("two heads", "an answer holds")),
    "leads without promises": (Parts(head=StaysAlone), ("two heads",)),
    "does not wait for a lost standby": (Parts(head=WaitsForNoneLost), ("an answer holds",)),
    "is elected by half": (Parts(candidate=ElectedByHalf), ("two heads", "an answer holds", "a term is one head's")),
}
"""By name: what is planted, and which of the promises it may break."""
