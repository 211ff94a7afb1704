"""Links that lose, repeat, delay and reorder what is sent over them, and can be cut in either direction."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappush
from typing import Any

from plesio.torture.plan import Plan

LEAST_DELAY_S = 0.0005

Handler = Callable[[Any, Any], None]


class Agenda:
    """What is to happen when: a heap of (time, number, handler, two arguments)."""

    __slots__ = ("heap", "now_s", "number")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Handler, Any, Any]] = []
        self.now_s = 0.0
        self.number = 0

    def at(self, when_s: float, handler: Handler, first: Any = None, second: Any = None) -> None:
        """Let `handler(first, second)` be called at that time."""
        self.number += 1
        heappush(self.heap, (when_s, self.number, handler, first, second))


class Link:
    """One direction between a worker and the server."""

    __slots__ = ("_agenda", "_random", "cut", "deliver", "loss", "repeats", "spread_s", "story", "tally")

    def __init__(self, agenda: Agenda, rng: random.Random, plan: Plan, tally: Counter[str], deliver: Handler) -> None:
        self._agenda = agenda
        self._random = rng.random
        self.tally = tally
        self.deliver = deliver
        self.story: Callable[[Any, Any, str], None] | None = None
        self.loss = plan.loss if "loss" in plan.faults else 0.0
        self.repeats = plan.repeats if "repeats" in plan.faults else 0.0
        self.spread_s = plan.spread_s if "delays" in plan.faults else LEAST_DELAY_S
        self.cut = False

    def heal(self) -> None:
        """From now on everything arrives, once and soon."""
        self.cut = False
        self.loss = self.repeats = 0.0
        self.spread_s = LEAST_DELAY_S

    def send(self, letter: Any, payload: int) -> None:
        """Let a letter, and what travels beside it, arrive: never, once or twice, sooner or later than others."""
        chance = self._random
        if self.cut or chance() < self.loss:
            self.tally["letters lost"] += 1
            if self.story:
                self.story(letter, payload, "cut off" if self.cut else "LOST")
            return
        late = chance() ** 6  # most are quick, a few very late
        if self.story:
            self.story(letter, payload, f"takes {1000 * (LEAST_DELAY_S + self.spread_s * late):.0f} ms")
        agenda = self._agenda
        agenda.at(agenda.now_s + LEAST_DELAY_S + self.spread_s * late, self.deliver, letter, payload)
        if self.repeats and chance() < self.repeats:
            self.tally["letters repeated"] += 1
            late = chance() ** 2
            if self.story:
                self.story(letter, payload, f"TWICE, takes {1000 * (LEAST_DELAY_S + self.spread_s * late):.0f} ms")
            agenda.at(agenda.now_s + LEAST_DELAY_S + self.spread_s * late, self.deliver, letter, payload)
