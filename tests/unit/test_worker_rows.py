"""Which rows a worker of another host may ask for, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plesio as ps
from plesio.core.events import FoldRows, Serve
from plesio.launch.local.worker_rows import WorkerRows
from plesio.memory.row_tables import RowTables
from plesio.protocol.coding import ProtocolError
from plesio.protocol.rows import RowsRequest
from plesio.tables.spec import TableSpec
from plesio.transport.row_slots import MOST, RowSlots
from support.long_forms import examples

SPECS = TableSpec("ids", 2, ps.RowSGD(0.5)), TableSpec("words", 3, ps.RowSGD(0.5))
NOTHING = (0, 0)


def wants(number: int, *wanted: tuple[int, int], ahead: bool = False) -> RowsRequest:
    return RowsRequest(number, wanted, ahead)


def of_ids(number: int, at: int, count: int, ahead: bool = False) -> RowsRequest:
    return wants(number, (at, count), NOTHING, ahead=ahead)


def fetch(number: int) -> RowsRequest:
    return wants(number, ahead=True)


SERVED, SERVED_AHEAD = "served", "served ahead"
SENT, ANSWERED = "sent", "answered"
TURNS: list[tuple[list[Any], bool]] = [
    ([of_ids(1, 0, 5)], True),
    ([of_ids(0, 0, 5)], True),
    ([of_ids(2, 0, 5)], False),
    ([of_ids(1, 1, 5)], False),
    ([of_ids(0, 1, 5)], False),
    ([of_ids(1, 0, MOST)], True),
    ([of_ids(1, 0, MOST + 1)], False),
    ([wants(1, (0, 5))], False),
    ([wants(1, (0, 5), (0, 5), (0, 5))], False),
    ([of_ids(1, 0, 5), of_ids(1, 5, 1)], False),
    ([of_ids(1, 0, 5), SERVED, of_ids(1, 5, 1)], True),
    ([of_ids(1, 0, 5), SERVED, of_ids(1, 4, 1)], False),
    ([of_ids(1, 0, 5), SERVED, wants(1, (7, 0), (0, 2))], True),
    ([of_ids(1, 0, 5), SERVED, SENT, of_ids(1, 5, 1)], False),
    ([of_ids(1, 0, 5), SERVED, SENT, of_ids(2, 0, 1)], True),
    ([of_ids(1, 0, 5), SENT], False),
    ([of_ids(2, 0, 5, ahead=True)], True),
    ([of_ids(1, 0, 5, ahead=True)], False),
    ([of_ids(3, 0, 5, ahead=True)], False),
    ([of_ids(2, 0, 5, ahead=True), of_ids(2, 5, 5, ahead=True)], False),
    ([SENT, of_ids(3, 0, 5, ahead=True)], False),
    ([SENT, ANSWERED, of_ids(3, 0, 5, ahead=True)], True),
    ([fetch(1)], False),
    ([of_ids(2, 0, 5, ahead=True), fetch(2)], False),
    ([of_ids(2, 0, 5, ahead=True), SENT, fetch(2)], True),
    ([of_ids(2, 0, 5, ahead=True), SENT, fetch(2), fetch(2)], False),
    ([of_ids(2, 0, 5, ahead=True), SENT, of_ids(2, 5, 1)], False),
    ([of_ids(2, 0, 5, ahead=True), SENT, of_ids(0, 0, 1)], True),
    ([of_ids(2, 0, 5, ahead=True), SENT, fetch(2), SERVED_AHEAD, of_ids(2, 5, 1)], True),
    ([of_ids(2, 0, 5, ahead=True), SENT, SERVED_AHEAD, fetch(2), of_ids(2, 5, 1)], True),
    ([of_ids(2, 0, 5, ahead=True), SENT, ANSWERED, SENT], False),
]


class Turns:
    """What is let pass, by the contributions sent and the answers."""

    def __init__(self, slots: RowSlots) -> None:
        self.rows, self.steps, self.answers = WorkerRows((slots,), 0), 0, 1

    def passes(self, one: Any) -> bool:
        if isinstance(one, RowsRequest):
            if not self.rows.may_ask(one, self.steps + 1, self.answers):
                return False
            self.rows.note(one)
            self.send(ahead=True) if one.ahead else None
        elif one == SENT:
            if not (self.rows.may_send(self.steps + 1) and self.steps + 1 <= self.answers):
                return False
            self.steps += 1
        elif one == ANSWERED:
            self.answers += self.answers <= self.steps
        else:
            self.rows.served(ahead := one == SERVED_AHEAD)
            self.send(ahead)
        return True

    def send(self, ahead: bool) -> None:
        if self.rows.is_due(ahead):
            self.rows.due(ahead)


@pytest.mark.parametrize(("said", "passes"), TURNS)
def test_rows_are_asked_for_in_turn(said: list[Any], passes: bool) -> None:
    turns = Turns(RowSlots.create(SPECS, readers=2))
    assert [turns.passes(one) for one in said] == [True] * (len(said) - 1) + [passes]


@pytest.mark.parametrize(("keys", "at"), [([5, 6, 5], 0), ([7], 2)])
def test_no_row_is_asked_for_twice(keys: list[int], at: int) -> None:
    slots = RowSlots.create(SPECS, readers=2)
    rows, laid = WorkerRows((slots,), 1), slots.of(1, 1, 0)
    laid.keys[:2] = 7, 8
    rows.note(of_ids(1, 0, at))
    laid.keys[at : at + len(keys)] = keys
    with pytest.raises(ProtocolError, match="it asked for a row twice"):
        rows.check_keys(of_ids(1, at, len(keys)))
    laid.keys[at : at + len(keys)] = range(len(keys))
    rows.check_keys(of_ids(1, at, len(keys)))


small = st.integers(0, 4)
requests = st.builds(
    RowsRequest, small, st.lists(st.tuples(small, small), max_size=3).map(tuple), st.booleans()
)  # fmt: skip


@settings(deadline=None, max_examples=examples(25))
@given(st.lists(requests | st.sampled_from([SERVED_AHEAD, SENT, SENT, ANSWERED, ANSWERED]), max_size=40), st.randoms())
def test_whatever_a_worker_asks_for_the_server_can_serve_and_step(said: list[Any], draw: Any) -> None:
    """Rows step when a contribution is answered, from where they lie by then."""
    slots = RowSlots.create(SPECS, readers=2)
    turns, tables = Turns(slots), RowTables(slots, at_once=True)
    waiting: list[int] = []
    for one in said:
        if one == SERVED_AHEAD and not waiting:
            continue
        before = turns.steps, turns.answers
        if not turns.passes(one):
            continue
        if isinstance(one, RowsRequest) and one.wanted:
            for table, (at, count) in enumerate(one.wanted):
                slots.of(0, one.number, table).keys[at : at + count] = np.arange(at, at + count) + draw.randrange(2)
            try:
                turns.rows.check_keys(one)
            except ProtocolError:
                break
            tables.asked(0, one)
            if one.ahead:
                waiting.append(one.number)
            else:
                tables.do(Serve(0, one.number))
                turns.passes(SERVED)
        elif one == SERVED_AHEAD:
            tables.do(Serve(0, waiting.pop(), ahead=True))
        elif turns.steps > before[0]:
            for table, count in enumerate(turns.rows.counts(turns.steps)):
                slots.of(0, turns.steps, table).touched[:count] = 1
        elif turns.answers > before[1]:
            tables.do(FoldRows(0, turns.steps))
    assert not [one for one in waiting if one <= turns.steps]
