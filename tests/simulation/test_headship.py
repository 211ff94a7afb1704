"""Who is head where hosts die and links are cut: each promise of `plesio.core.headship`, and each rule by itself."""

from __future__ import annotations

import pytest

from plesio.core.contender import Contender
from plesio.core.headship import (
    ANYBODY,
    HEAD_S,
    LEASE_S,
    NONE,
    Ask,
    Beat,
    Candidate,
    Fenced,
    Head,
    NotYou,
    Promise,
    Vote,
    Voter,
)
from torture.heads import BROKEN, run
from torture.heads.bugs import PLANTED

SEEDS = 60


MANY = pytest.param(range(SEEDS, 600), marks=pytest.mark.thorough)
ALL_SEEDS = pytest.param(range(600, 10_000), marks=pytest.mark.slow)


@pytest.mark.parametrize("seeds", [range(SEEDS), MANY, ALL_SEEDS], ids=lambda seeds: f"{len(seeds)} seeds")
def test_one_head_leads_and_nothing_that_was_answered_is_lost(seeds: range) -> None:
    outcomes = [run(seed) for seed in seeds]
    assert [(one.seed, one.broken) for one in outcomes if one.broken] == []
    assert sum(one.terms > 1 for one in outcomes) > len(seeds) / 8, "heads are lost, and standbys elected"


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_breaks_its_promise(name: str) -> None:
    parts, breaks = PLANTED[name]
    assert set(breaks) <= set(BROKEN)
    broken = next(one.broken for one in (run(seed, parts) for seed in range(2000)) if one.broken)
    assert broken.startswith(breaks)


ALL = frozenset({10, 11, 12})


def beat(
    term: int = 1, number: int = 1, electable: frozenset[int] = frozenset({0, 1, 2}), voters: frozenset[int] = ALL
) -> Beat:
    return Beat(term, number, 0, voters, electable)


def wish(term: int, standby: int, *of: int, last: Beat = NONE) -> Ask:
    return Ask(term, standby, frozenset(of), last)


def leading(head: Head, now_s: float = 0.0) -> int:
    """All voters promise the next beat, which has this number."""
    sent = head.beat(now_s)
    for voter in sent.voters:
        head.promised(voter, Promise(sent.term, sent.number))
    return sent.number


def test_a_promise_counts_from_when_its_beat_was_sent_and_is_kept_from_when_it_came() -> None:
    head, voter = Head(0, 1, {10}), Voter()
    sent = head.beat(now_s=100.0)
    promise = voter.beat(sent, now_s=7.0)
    assert isinstance(promise, Promise)
    head.promised(10, promise)
    head.elect({0, 1})
    assert head.leads(100.0 + HEAD_S - 0.01)
    assert not head.leads(100.0 + HEAD_S + 0.01)
    ask = wish(2, 0, 1)
    other = wish(2, 1, 1)
    assert voter.asked(other, 7.0 + LEASE_S - 0.01) == NotYou(2)  # no beat names it
    assert isinstance(voter.asked(ask, 7.1), Vote)  # whom it promised to


def test_a_voter_votes_for_nobody_else_while_it_promised() -> None:
    voter, ask = Voter(), wish(2, 1, 1)
    voter.beat(beat(), now_s=7.0)
    assert voter.asked(ask, 7.0 + LEASE_S - 0.01) is None
    assert voter.asked(ask, 7.0 + LEASE_S) == Vote(2, beat())
    assert voter.asked(ask, 7.1 + LEASE_S) == Vote(2, beat())  # it may say so again,
    assert voter.asked(wish(2, 2, 1), 99.0) is None  # and has one vote a term
    assert voter.beat(beat(), 99.0) == Fenced(2)


def test_a_standby_that_has_the_log_of_another_head_is_not_elected() -> None:
    """It gave up what it had of the last one when it began with the next, which most voters do not know."""
    voter = Voter()
    voter.beat(beat(term=1), now_s=0.0)
    assert voter.asked(wish(5, 1, 2), now_s=9.0) == NotYou(5)
    assert voter.asked(wish(5, 1, 2, last=beat(term=2, electable=frozenset({2}))), now_s=9.0) == NotYou(5)
    assert isinstance(voter.asked(wish(5, 1, 1, 2, last=beat(term=2, number=2)), now_s=9.0), Vote), (
        "it hears of that head now"
    )


def test_one_who_knows_no_head_says_nothing() -> None:
    assert Voter().asked(wish(2, 1, 1), now_s=9.0) is None


def test_an_elected_head_waits_for_its_rivals_until_most_know_it() -> None:
    standby = Candidate(1, now_s=0.0)
    standby.heard(beat(), now_s=0.0)
    standby.begins(1, now_s=0.0)
    ask = standby.ask(now_s=5.0)
    assert ask is not None
    for voter in (10, 11):
        standby.voted(voter, Vote(ask.term, beat()))
    head = standby.elected()
    assert head is not None
    assert head.leads(5.1)
    assert head.awaits == {ANYBODY}
    sent = head.beat(5.1)
    head.promised(10, Promise(sent.term, sent.number))
    assert head.awaits == {ANYBODY}
    head.promised(11, Promise(sent.term, sent.number))
    assert head.awaits == set()


def test_most_are_most_of_those_that_the_newest_beat_names() -> None:
    standby = Candidate(1, now_s=0.0)
    standby.heard(beat(), now_s=0.0)
    standby.begins(1, now_s=0.0)
    ask = standby.ask(now_s=5.0)
    assert ask is not None
    standby.voted(10, Vote(ask.term, beat(number=4, voters=frozenset({10}))))
    assert standby.elected() is not None
    standby.voted(11, Vote(ask.term, beat(number=5, voters=frozenset({10, 11, 12, 13}))))
    assert standby.elected() is None


def test_a_lost_standby_is_waited_for_until_most_know_that_it_is_not_to_be_elected() -> None:
    head = Head(0, 1, ALL)
    head.elect({1, 2})
    leading(head)
    head.elect({2})
    assert head.awaits == {1, 2}
    sent = head.beat(0.1)
    assert sent.electable == {0, 2}
    head.promised(10, Promise(1, sent.number))
    assert head.awaits == {1, 2}
    head.promised(11, Promise(1, sent.number))
    assert head.awaits == {2}


def test_voters_change_by_one_at_a_time_and_both_majorities_count_until_most_know() -> None:
    head = Head(0, 1, ALL)
    head.elect({1})
    head.vote({10, 13, 14})
    assert head.voters == ALL, "its first beat is not known"
    leading(head)
    head.vote({10, 13, 14})
    assert head.voters == ALL | {13}
    sent = head.beat(1.9)
    for voter in (10, 13):
        head.promised(voter, Promise(1, sent.number))
    assert not head.leads(1.9), "2 of 4, and 1 of the 3 of before"
    head.vote({10, 13, 14})
    assert head.voters == ALL | {13}, "that is not known yet"
    head.promised(11, Promise(1, sent.number))
    assert head.leads(1.9)
    seen = []
    for number in range(8):
        head.vote({10, 13, 14})
        leading(head, 2.0 + number)
        seen.append(len(head.voters))
    assert head.voters == {10, 13, 14}
    assert seen == [5, 4, 3, 3, 3, 3, 3, 3]


def test_a_head_that_hears_nobody_drops_nobody() -> None:
    """Any two of the three may come back first."""
    head = Head(10, 1, ALL)
    head.elect({11})
    for _ in range(3):
        leading(head)
        head.vote({10})
    assert head.voters == ALL
    head.vote({10, 12})
    assert head.voters == {10, 12}


def test_a_head_drops_who_is_to_leave_and_still_answers_be_that_most_of_them() -> None:
    head = Head(10, 1, ALL)
    head.elect({11})
    for _ in range(3):
        leading(head)
        head.vote({10}, here=ALL)
    assert head.voters == {10}


def test_a_head_that_never_named_a_standby_leads_alone_and_its_voters_change_at_once() -> None:
    head = Head(0, 1, ALL)
    head.vote({0, 13})
    assert head.voters == {0, 13}
    assert head.leads(99.0)
    assert head.leads_until_s == float("inf")
    head.elect({1})
    assert not head.leads(99.0)
    leading(head, 99.0)
    assert head.leads_until_s == 99.0 + HEAD_S


def test_a_standby_may_be_elected_only_with_the_log_of_the_last_head() -> None:
    standby = Candidate(1, now_s=0.0)
    standby.heard(beat(), now_s=0.0)
    assert standby.ask(now_s=5.0) is None, "it has no log"
    assert standby.begins(1, now_s=0.0)
    assert standby.ask(now_s=5.0) == wish(2, 1, 1, last=beat())
    standby.heard(beat(term=3), now_s=6.0)
    assert standby.of == {1}, "that head's log has not come"
    assert not standby.begins(1, now_s=6.0), "it knows a later head"
    assert standby.begins(3, now_s=6.0)
    assert standby.of == {3}
    standby.forgets()
    assert standby.ask(now_s=99.0) is None


def test_a_standby_that_asked_in_vain_follows_the_head_that_is_there() -> None:
    """Its votes count no more then."""
    standby = Candidate(1, now_s=0.0)
    assert standby.begins(1, now_s=5.0)
    assert standby.ask(now_s=5.1) is None, "it has the log of a head that is there"
    ask = standby.ask(now_s=5.1 + LEASE_S)
    assert ask is not None
    assert standby.begins(1, now_s=8.0)
    for voter in (10, 11, 12):
        standby.voted(voter, Vote(ask.term, beat()))
    assert standby.elected() is None
    standby.heard(beat(number=7), now_s=8.5)
    assert standby.ask(now_s=8.4 + LEASE_S) is None
    assert standby.ask(now_s=8.6 + LEASE_S) == wish(ask.term + 1, 1, 1, last=beat(number=7))


def test_who_is_no_head_answers_nobody_and_forgets_no_log_that_it_leads_by() -> None:
    contender = Contender(0, now_s=0.0, head=Head(0, term=1, voters={0, 10, 11}))
    assert (contender.term, contender.awaits, contender.forgets()) == (1, set(), False)
    contender.hear(10, Fenced(2), now_s=0.1)
    contender.tick(now_s=0.2)
    assert (contender.term, contender.awaits, contender.forgets()) == (0, {ANYBODY}, True)


def test_a_standby_that_more_may_not_elect_than_do_leaves_the_votes_to_another() -> None:
    standby = Candidate(1, now_s=0.0)
    standby.heard(beat(), now_s=0.0)
    standby.begins(1, now_s=0.0)
    ask = standby.ask(now_s=5.0)
    assert ask is not None
    standby.voted(10, Vote(ask.term, beat()))
    standby.refused(11, NotYou(ask.term), now_s=5.1)
    assert standby.ask(now_s=5.0 + LEASE_S + 0.1) is None
    assert standby.ask(now_s=5.1 + 2 * LEASE_S + 0.1) is not None
