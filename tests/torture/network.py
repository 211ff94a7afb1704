"""Links that lose, repeat, delay and reorder what is sent over them, and can be cut in either direction."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappush
from typing import Any

from torture.agenda import Agenda, Handler
from torture.plan import Plan

LEAST_DELAY_S = 0.0005


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
        if self.cut or (self.loss and self._random() < self.loss):
            self.tally["letters lost"] += 1
            if self.story:
                self.story(letter, payload, "cut off" if self.cut else "LOST")
            return
        agenda = self._agenda
        delay_s = LEAST_DELAY_S + self.spread_s * self._random() ** 6  # most are quick, a few very late
        agenda.number += 1
        heappush(agenda.heap, (agenda.now_s + delay_s, agenda.number, self.deliver, letter, payload))
        if self.story:
            self.story(letter, payload, f"takes {1000 * delay_s:.0f} ms")
        if self.repeats and self._random() < self.repeats:
            delay_s += self.spread_s * self._random()
            self.tally["letters repeated"] += 1
            agenda.at(agenda.now_s + delay_s, self.deliver, letter, payload)
            if self.story:
                self.story(letter, payload, f"TWICE, takes {1000 * delay_s:.0f} ms")
