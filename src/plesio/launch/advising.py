"""Says to whoever watches a run, now and then, that another strategy would be much faster.

Nobody is asked while nobody watches: the page asks for an advice (`plesio.observe.asked`) while it is open.
"""

from __future__ import annotations

import time

from plesio.config import RunConfig
from plesio.launch.job import Live
from plesio.launch.simulated.lately import advice_lately
from plesio.protocol.launcher import Lately

FIRST_S, EVERY_S = 10.0, 30.0
SHARE_MAX = 0.02
"""An advice takes at most this share of a core: with many workers it comes less often."""


class Adviser:
    """Asks the server what the workers did lately, and forecasts."""

    def __init__(self, config: RunConfig) -> None:
        strategy = config.strategy
        works_alone = strategy.every.by_client or strategy.every.among_ranks
        self._can = config.data == "leases" and strategy.via.at_server and not works_alone
        self._config = config
        self._next_s = FIRST_S
        self._heard: Lately | None = None
        self.advice = ""

    def ask(self, live: Live) -> None:
        if self._can and live.measurer is not None and live.time_s >= self._next_s:
            self._next_s = live.time_s + EVERY_S
            live.measurer(EVERY_S)

    def look(self, live: Live) -> None:
        if live.lately is self._heard or live.lately is None:
            return
        self._heard, began_s = live.lately, time.monotonic()
        self.advice = advice_lately(live.lately, self._config.strategy, self._config.workers)
        self._next_s += max(0.0, (time.monotonic() - began_s) / SHARE_MAX - EVERY_S)
