"""Simulated time: what is to happen when, in one order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

Handler = Callable[[Any, Any], None]


class Agenda:
    """A heap of (time, number, handler, two arguments): what is due at the same time happens in the order it was put in.

    >>> agenda = Agenda()
    >>> agenda.at(2.0, print, "second"); agenda.at(1.0, print, "first")
    >>> [entry[3] for entry in sorted(agenda.heap)]
    ['first', 'second']
    """

    __slots__ = ("heap", "now_s", "number")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Handler, Any, Any]] = []
        self.now_s = 0.0
        self.number = 0

    def at(self, when_s: float, handler: Handler, first: Any = None, second: Any = None) -> None:
        """Let `handler(first, second)` be called at that time."""
        self.number += 1
        heappush(self.heap, (when_s, self.number, handler, first, second))
