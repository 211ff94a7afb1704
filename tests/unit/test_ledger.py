"""The ledger against a plain set of everything it ever admitted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.ledger import WINDOW, Admission, Ledger

WORKERS = 3


class Plain:
    """What the ledger should say, kept without regard for memory."""

    def __init__(self) -> None:
        self.admitted: set[tuple[int, int, int]] = set()
        self.current: dict[int, int] = {}

    def contiguous(self, worker: int) -> int:
        number = 0
        while (worker, self.current.get(worker, 0), number + 1) in self.admitted:
            number += 1
        return number

    def admit(self, worker: int, incarnation: int, number: int) -> Admission:
        if self.current.get(worker) != incarnation:
            return Admission.FENCED
        if number < 1 or (worker, incarnation, number) in self.admitted:
            return Admission.DUPLICATE
        if number > self.contiguous(worker) + WINDOW:
            return Admission.BEYOND
        self.admitted.add((worker, incarnation, number))
        return Admission.NEW


def contiguous(ledger: Ledger, worker: int) -> int:
    """The highest number of the worker's incarnation below which everything was answered."""
    account = ledger._accounts.get(worker)
    return account.contiguous if account else 0


ADMITS = st.tuples(st.just("admit"), st.integers(0, WORKERS - 1), st.integers(-1, 1), st.integers(-3, WINDOW + 3))
NEXT = st.tuples(st.just("admit"), st.integers(0, WORKERS - 1), st.just(0), st.integers(1, 3))
SEATS = st.tuples(st.sampled_from(["open", "close"]), st.integers(0, WORKERS - 1), st.just(0), st.just(0))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.one_of(NEXT, NEXT, ADMITS, SEATS), max_size=60))
def test_it_answers_as_a_set_would(actions: list[tuple[str, int, int, int]]) -> None:
    ledger, plain = Ledger(), Plain()
    incarnations = dict.fromkeys(range(WORKERS), 0)
    for name, worker, older, ahead in [*(("open", worker, 0, 0) for worker in range(WORKERS)), *actions]:
        if name == "open":
            incarnations[worker] += 1
            ledger.open(worker, incarnations[worker])
            plain.current[worker] = incarnations[worker]
        elif name == "close":
            ledger.close(worker)
            plain.current.pop(worker, None)
        else:
            key = (worker, incarnations[worker] + older, plain.contiguous(worker) + ahead)
            assert ledger.admit(*key) is plain.admit(*key)
        assert contiguous(ledger, worker) == plain.contiguous(worker)


@given(st.permutations(range(1, WINDOW + 1)))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_every_order_within_the_window_is_admitted_once(order: list[int]) -> None:
    ledger = Ledger()
    ledger.open(0, 1)
    assert {ledger.admit(0, 1, number) for number in order} == {Admission.NEW}
    assert {ledger.admit(0, 1, number) for number in order} == {Admission.DUPLICATE}
    assert contiguous(ledger, 0) == WINDOW


def test_the_window_is_exactly_as_wide_as_it_says() -> None:
    ledger = Ledger()
    ledger.open(0, 1)
    assert ledger.admit(0, 1, WINDOW + 1) is Admission.BEYOND
    assert ledger.admit(0, 1, WINDOW) is Admission.NEW
    assert ledger.admit(0, 1, 1) is Admission.NEW
    assert ledger.admit(0, 1, WINDOW + 1) is Admission.NEW


def test_memory_is_constant_a_worker() -> None:
    ledger = Ledger()
    ledger.open(0, 1)
    for number in range(2, 10_000):  # number 1 never comes
        ledger.admit(0, 1, number)
    assert contiguous(ledger, 0) == 0
    assert ledger._accounts[0].window.bit_length() <= WINDOW


def test_an_unknown_worker_and_one_that_left_are_fenced() -> None:
    ledger = Ledger()
    assert ledger.admit(0, 1, 1) is Admission.FENCED
    ledger.open(0, 1)
    assert ledger.admit(0, 1, 1) is Admission.NEW
    ledger.close(0)
    assert ledger.admit(0, 1, 1) is Admission.FENCED
    assert ledger.admit(0, 1, 2) is Admission.FENCED
    ledger.close(0)


def test_an_incarnation_never_comes_back() -> None:
    ledger = Ledger()
    ledger.open(0, 2)
    with pytest.raises(AssertionError, match="never comes back"):
        ledger.open(0, 2)
