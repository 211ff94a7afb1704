"""What travels with contributions and answers: each attachment's halves together, and what is no attachment's is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plesio.attachments import Attachments, Halves
from plesio.attachments.counters import Counting
from plesio.attachments.orders import Ordering
from plesio.attachments.schedules import CARRIED_MAX, Scheduling
from plesio.errors import ConfigurationError
from plesio.protocol.coding import ProtocolError, encode
from plesio.worker.counter import Counter

WORKERS = 3
PUSHING = SimpleNamespace(optimizer=torch.optim.SGD([torch.ones(1)], lr=0.5))
TURNS = st.lists(st.tuples(st.integers(0, WORKERS - 1), st.integers(1, 9), st.booleans()), max_size=30)


@given(TURNS)
def test_counters_add_up_and_a_checkpoint_has_what_was_answered(turns: list[tuple[int, int, bool]]) -> None:
    attachments, halves = Attachments(WORKERS), [Halves() for _ in range(WORKERS)]
    settled, waiting = 0, dict[int, int]()
    for worker, amount, answered in turns:
        if worker in waiting:
            continue  # it has one contribution at a time
        counter = Counter("games", halves[worker].of(Counting))
        before = counter.value
        counter.add(amount)
        assert counter.value == before + amount
        attachments.told(worker, halves[worker].take(PUSHING))
        if answered:
            attachments.answered(worker)
            settled += amount
        else:
            waiting[worker] = amount
    assert attachments.kept()["counters"].get("games", 0) == settled
    for half in halves:
        half.hear(attachments.answer)
        assert half.of(Counting).all.get("games", 0) == settled + sum(waiting.values())
    again = Attachments(WORKERS)
    again.restore(msgspec.msgpack.decode(encode(attachments.kept())))
    assert again.kept() == attachments.kept()


def test_what_a_pass_was_drawn_from_goes_to_another_process_until_that_begins_one() -> None:
    attachments, half, sources = Attachments(1), Halves(), bytes(range(9))
    half.of(Ordering).began = 1, lambda: sources
    attachments.told(0, half.take(PUSHING))
    assert half.take(PUSHING) == {}, "nothing is new"
    assert attachments.order is None, "it knows that"
    half.lost()
    assert half.take(PUSHING) != {}, "it may not have come"
    again, several = Attachments(1), Attachments(2)
    for one in again, several:
        one.restore(msgspec.json.decode(msgspec.json.encode(attachments.kept())))  # as in a checkpoint
    attachments.again(0)
    assert several.order is None, "the run draws it"
    for server in attachments, again:
        assert server.order == (1, sources)
        successor = Halves()
        successor.of(Ordering).began = 2, bytes
        server.told(0, successor.take(PUSHING))
        assert server.order is None


def test_schedules_are_told_when_they_moved_and_a_new_process_hears_what_was_answered() -> None:
    attachments, half = Attachments(WORKERS), Halves()
    schedule = half.of(Scheduling)
    optimizer = torch.optim.AdamW([torch.ones(1)], lr=0.5)
    pushing = SimpleNamespace(optimizer=optimizer)
    schedule.begin(optimizer)
    schedule.calls = 2
    schedule.keep(1, {"best": torch.tensor(math.inf), "mode": "min", "odd": object()})
    optimizer.param_groups[0] |= {"lr": torch.tensor(0.25), "betas": (0.5, 0.9)}
    attachments.told(1, half.take(pushing))
    assert half.take(pushing) == {}, "nothing is new"
    half.lost()
    assert half.take(pushing) != {}, "it may not have come"
    attachments.answered(1)
    schedule.calls = 3
    attachments.told(1, half.take(pushing))  # and is not answered
    attachments.again(1)
    again = Attachments(WORKERS)
    again.restore(msgspec.json.decode(msgspec.json.encode(attachments.kept())))  # as in a checkpoint
    for server in attachments, again:
        successor = Halves()
        successor.hear(server.beginning(1))
        found = successor.of(Scheduling)
        assert found.calls == 2
        assert found.before.changed == {0: {"lr": 0.25, "betas": [0.5, 0.9]}}
        assert found.before.states == {1: {"best": math.inf, "mode": "min"}}


def test_more_settings_than_an_answer_holds_are_left_out() -> None:
    """All of them: a part of them would be neither the old nor the new settings."""
    for groups, fits in ((100, True), (500, False)):
        optimizer = torch.optim.SGD([{"params": [torch.ones(1)]} for _ in range(groups)], lr=0.5)
        schedule = Scheduling()
        schedule.begin(optimizer)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.1
        said = schedule.take(SimpleNamespace(optimizer=optimizer))
        assert said is not None
        assert (0 < len(said[1]) <= CARRIED_MAX) == fits


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"colour": 1}, ProtocolError, "worker 0 said 'colour', which has no place in this run"),
        ({"counters": {"games": -1}}, ProtocolError, "bytes are no message"),
        ({"counters": {"two words": 1}}, ProtocolError, "bytes are no message"),
        ({"schedules": "fast"}, ProtocolError, "bytes are no message"),
        ({"schedules": (1, bytes(CARRIED_MAX + 1))}, ProtocolError, "bytes are no message"),
        ({"counters": dict.fromkeys("abcde", 1)}, ConfigurationError, r"5 counters \(a, b, c, d, e\)"),
    ],
)
def test_what_no_attachment_says_is_refused(said: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Attachments(WORKERS).told(0, {name: msgspec.Raw(encode(value)) for name, value in said.items()})
