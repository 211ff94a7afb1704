"""Forecasts for a run under way: for who watches it, or for the run itself, if it chooses its strategy.

Nobody is asked while nobody watches: the page asks for an advice (`plesio.observe.asked`) while it is open. A run that chooses
(`plesio.auto`) asks by itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plesio.config import RunConfig
from plesio.launch.job import Live
from plesio.protocol.launcher import Lately
from plesio.strategy import Strategy

if TYPE_CHECKING:
    from plesio.launch.simulated.lately import Automatic

FIRST_S, EVERY_S = 10.0, 30.0
SHARE_MAX = 0.02
"""Advice takes at most this share of a core: with many workers it comes less often."""


class Adviser:
    """Asks the server what the workers did lately, and says what to make of it."""

    def __init__(self, config: RunConfig) -> None:
        strategy = self._strategy = config.strategy
        alone = strategy.every.by_client or strategy.every.among_ranks
        self._can = config.data != "shards" and strategy.via.at_server and not alone
        self._automatic = _automatic(strategy) if strategy.chooses is not None else None
        self._every_s = self._automatic.rules.every_s if self._automatic is not None else EVERY_S
        self._next_s = FIRST_S if self._automatic is None else self._every_s
        self._heard: Lately | None = None
        self.advice = ""

    def ask(self, live: Live) -> None:
        if self._can and live.measurer is not None and live.time_s >= self._next_s:
            self._next_s = live.time_s + self._every_s
            live.measurer(self._every_s)

    def look(self, live: Live) -> None:
        if self._automatic is not None:
            self.ask(live)
        if live.lately is self._heard or live.lately is None:
            return
        self._heard, began_s = live.lately, time.monotonic()
        if self._automatic is None:
            from plesio.launch.simulated.lately import advice_lately

            self.advice = advice_lately(live.lately, self._strategy.phases[live.lately.phase], live.workers)
            self._next_s += max(0.0, (time.monotonic() - began_s) / SHARE_MAX - EVERY_S)
        elif (found := self._automatic.hear(live.time_s, live.lately, live.workers)) is not None:
            live.switch(*found)


def _automatic(strategy: Strategy) -> Automatic:
    from plesio.launch.simulated.lately import Automatic  # the simulator: only where it is asked

    return Automatic(strategy)
