"""How much data a worker asks for: much where its steps are quick, and in a replay no less than it did then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plesio.lease_size import LEAST, MOST, QUICK_S, LeaseSize

PLENTY = 10**6


def sizes(step_s: float, leases: int = 12) -> list[int]:
    """What a worker asks for whose steps take that long."""
    size, now_s, asked = LeaseSize(), 0.0, []
    for _ in range(leases):
        asked.append(size.asked(PLENTY, now_s))
        size.given(now_s)
        now_s += asked[-1] * step_s
    return asked


def test_a_quick_worker_asks_for_more_up_to_a_bound() -> None:
    assert sizes(step_s=0.0001) == [LEAST, 16, 32] + [MOST] * 9


def test_a_slow_one_keeps_to_few() -> None:
    assert set(sizes(step_s=0.02)) == {LEAST}


def test_one_in_between_asks_for_what_lasts_about_as_long() -> None:
    assert set(sizes(step_s=0.002)[3:]) == {16, 32}


def test_that_an_epoch_had_no_more_is_no_sign_of_a_quick_worker() -> None:
    size = LeaseSize()
    size.asked(PLENTY, now_s=0.0)
    size.given(now_s=0.0)
    assert [size.asked(PLENTY, now_s=1.0), size.asked(PLENTY, now_s=1.0)] == [LEAST, LEAST]


@given(st.lists(st.tuples(st.floats(0, 4 * QUICK_S), st.booleans(), st.integers(1, 2 * MOST))))
def test_where_the_time_stands_still_it_asks_for_no_less(asked: list[tuple[float, bool, int]]) -> None:
    recorded, replayed = LeaseSize(), LeaseSize()
    now_s = 0.0
    for pause_s, some, most in asked:
        now_s += pause_s
        assert 1 <= recorded.asked(most, now_s) <= replayed.asked(most, 0.0) <= min(most, MOST)
        if some:
            recorded.given(now_s)
            replayed.given(0.0)
