"""Before training: who is welcomed, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
