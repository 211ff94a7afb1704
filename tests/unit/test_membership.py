"""Membership against a plain list of seats."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.membership import Membership
from support.long_forms import examples

SILENCE_S = 5.0
ACTIONS = st.tuples(
    st.sampled_from(["push", "push", "push", "answer", "answer", "join", "leave", "look"]),
    st.integers(0, 3),
    st.integers(0, 3),
)


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(st.lists(ACTIONS, max_size=60))
def test_counted_aggregates_agree_with_the_seats(actions: list[tuple[str, int, int]]) -> None:
    """`slowest` and `waiting` are counters; a recount from the seats gives the same."""
    members, highest, now_s = Membership(SILENCE_S), dict.fromkeys(range(4), 0), 0.0
    finished_s: dict[int, float] = {}
    for name, worker, dial in actions:
        now_s += dial
        seat = members.seats.get(worker)
        if name == "join" and seat is None:
            incarnation = highest[worker] + dial - 1
            slowest = min((one.clock for one in members.seats.values()), default=members.slowest)
            joined = members.join(worker, incarnation, version=7, now_s=now_s)
            assert (joined is not None) == (incarnation > highest[worker])
            assert joined is None or (joined.clock, joined.computing, joined.heard_s) == (slowest, 7, now_s)
            highest[worker] = max(highest[worker], incarnation)
            if joined is not None:
                finished_s.pop(worker, None)
        elif name == "leave":
            when = now_s if dial % 3 else None
            left = members.leave(worker, highest[worker] - dial % 2, when)
            assert left is (seat if seat and dial % 2 == 0 else None)
            if left is not None and when is not None:
                finished_s[worker] = when
        elif name == "push" and seat and seat.waiting is None:
            clock = seat.clock
            members.pushed(seat, seat.next_number)
            assert seat.clock == clock + 1
        elif name == "answer" and seat and seat.waiting is not None:
            members.answered(seat, now_s)
        seats = members.seats.values()
        assert members.waiting == sum(one.waiting is not None for one in seats)
        assert not seats or members.slowest == min(one.clock for one in seats)
        silent = [one for one in seats if one.waiting is None and now_s - one.heard_s > SILENCE_S]
        assert members.silent(now_s) == silent
        long_ago = bool(finished_s) and all(now_s - one > SILENCE_S for one in finished_s.values())
        assert members.left_over(now_s) == (silent if long_ago and len(silent) == len(seats) else [])


def test_a_seen_or_older_incarnation_is_not_seated() -> None:
    members = Membership(SILENCE_S)
    assert members.join(0, 2, version=0, now_s=0.0) is not None
    members.leave(0, 2)
    assert members.join(0, 2, version=0, now_s=0.0) is None
    assert members.join(0, 1, version=0, now_s=0.0) is None
    assert members.seats == {}
    assert members.join(0, 3, version=0, now_s=0.0) is not None


def test_only_the_seated_incarnation_can_leave() -> None:
    members = Membership(SILENCE_S)
    members.join(0, 2, version=0, now_s=0.0)
    assert members.leave(0, 1) is None
    assert members.leave(1, 1) is None
    assert list(members.seats) == [0]


def test_a_waiting_worker_is_not_silent() -> None:
    members = Membership(SILENCE_S)
    seat = members.join(0, 1, version=0, now_s=0.0)
    assert seat is not None
    members.pushed(seat, 1, now_s=0.0, since_s=0.0)
    assert members.silent(100.0) == []
    members.answered(seat, 100.0)
    assert members.silent(105.0) == []
    assert members.silent(105.1) == [seat]
