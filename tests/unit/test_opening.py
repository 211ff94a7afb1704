"""Before training: who is welcomed, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from plesio.launch.local import worker_lines
from plesio.launch.local.turns import Turns
from plesio.server.opening import Opening


class Worker(SimpleNamespace):
    """The server's line to one, which notes what is said to it."""

    def say(self, *said: Any) -> None:
        self.heard.append(said[0])


def worker(number: int) -> Any:
    return Worker(worker=number, hello=None, welcomed=False, ready=False, gone=False, heard=[])


def test_a_successor_is_welcomed_once_it_has_shown_its_model() -> None:
    """Its predecessor had shown one, and died before all were ready."""
    assembly: Any = SimpleNamespace(welcome=lambda worker, first: (("welcome", first), ()))
    lines = [worker(0), worker(1)]
    opening = Opening(lambda hellos: assembly, lines, wanted=2)
    for line in lines:
        line.hello = object()
    opening.proceed(False)
    assert (lines[0].heard, lines[1].heard) == ([("welcome", True)], [])
    successor = lines[1] = worker(1)
    lines[0].ready = True
    opening.proceed(False)
    assert successor.heard == []
    successor.hello = object()
    opening.proceed(False)
    assert successor.heard == [("welcome", False)]
    assert not opening.complete


def test_a_head_that_took_over_waits_for_whoever_had_a_seat() -> None:
    """The first that comes is enough to begin with, and the others may be on their way."""
    lines: list[Any] = [worker(0), None, None]
    for takes_over, wanted, waits in ((True, 2, True), (True, 1, False), (False, 2, False)):
        opening = Opening(Mock(), lines, wanted, takes_over)
        assert (opening.may_come_back, bool(opening.vacant())) == (waits, wanted == 2 and not takes_over)


def test_who_ended_at_once_leaves_before_the_others_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data is for them."""
    monkeypatch.setattr(worker_lines, "Machine", Mock())
    lines: Any = [Mock(worker=number, gone=number == 1, finished=False, leaving=False) for number in range(3)]
    program, tables = Mock(begun=False), Mock()
    program.sequencer.workers, tables.lacking.return_value, tables.rows.return_value = 3, False, ()
    workers = worker_lines.WorkerLines(lines, Mock(), Turns(), Mock(takes_over=False), tables, Mock(), Mock())
    workers.serve(program)
    workers.proceed()
    turns = [(name, given[0]) for name, given, _ in program.method_calls if name in ("left", "joined")]
    assert turns == [("left", 1), ("joined", 0), ("joined", 2)]
