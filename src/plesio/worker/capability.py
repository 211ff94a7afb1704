"""The port of a capability at a worker: something that a run may be able to do, of which one that cannot pays nothing.

| it gives   | and the worker                                                                        |
| ---------- | ------------------------------------------------------------------------------------- |
| `by_turns` | leaves to it what is counted and sent; schedules go by its rounds                     |
| `begun`    | calls it when it takes part; the loop gets what it answers in place of what was given |
| `stepped`  | calls it after each step of an optimizer, and when one is called off                  |
| `where`    | adds what it says to an error that the training function raises                       |
| `leave`    | calls it when the training function returned                                          |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.introduction import Taking


class Capability:
    """One that gives nothing."""

    by_turns = False

    def begun(self, taking: Taking, exchange: Exchange) -> Mapping[int, Any]:
        """By the identity of what was given."""
        return {}

    def stepped(self, *_: object) -> None: ...
    def where(self) -> str:
        return ""

    def leave(self) -> None: ...
