"""A counter that all workers share, as a loop has that ends after so many episodes, whoever plays them."""

from __future__ import annotations

import re

from plesio.attachments.counters import COUNTERS_MAX, Counting
from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import WHOLE


class Counter:
    """What `Worker.counter` gives: a number that every worker may `add` to."""

    def __init__(self, name: str, counting: Counting) -> None:
        if not isinstance(name, str) or not re.fullmatch("[!-~]{1,16}", name):
            raise ConfigurationError(
                f"worker.counter({name!r}): its name is 1 to 16 ASCII characters without spaces, such as 'episodes'"
            )
        known = {*counting.all, *counting.added}
        if len({name, *known}) > COUNTERS_MAX:
            raise ConfigurationError(
                f"worker.counter({name!r}): a run has {COUNTERS_MAX} counters at most: {', '.join(sorted(known))}"
            )
        self._name = name
        self._counting = counting
        counting.added.setdefault(name, 0)

    def add(self, amount: int = 1) -> None:
        """Count so many more; the others hear of it with this worker's next exchange.

        Raises:
            ConfigurationError: `amount` is no whole number from 0 to 2**31.
        """
        if not WHOLE.holds(amount) or amount > 1 << 31:
            raise ConfigurationError(f"counter.add({amount!r}): a whole number from 0 to 2**31")
        self._counting.added[self._name] += amount

    @property
    def value(self) -> int:
        """What all workers had counted at this worker's last exchange, and what it has added since."""
        return self._counting.all.get(self._name, 0) + self._counting.added[self._name]
