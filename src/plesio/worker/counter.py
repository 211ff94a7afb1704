"""A counter that all workers share, as a loop has that ends after so many episodes, whoever plays them."""

from __future__ import annotations

import re

from plesio.errors import ConfigurationError
from plesio.protocol.worker import COUNTERS_MAX
from plesio.worker.state import WorkerState


class Counter:
    """What `Worker.counter` gives: a number that every worker may `add` to."""

    def __init__(self, name: str, state: WorkerState) -> None:
        if not isinstance(name, str) or not re.fullmatch("[!-~]{1,16}", name):
            raise ConfigurationError(
                f"worker.counter({name!r}): its name is 1 to 16 ASCII characters without spaces, such as 'episodes'"
            )
        if len({name, *state.counters, *state.counted}) > COUNTERS_MAX:
            known = ", ".join(sorted({*state.counters, *state.counted}))
            raise ConfigurationError(f"worker.counter({name!r}): a run has {COUNTERS_MAX} counters at most: {known}")
        self._name = name
        self._state = state
        state.counted.setdefault(name, 0)

    def add(self, amount: int = 1) -> None:
        """Count so many more; the others hear of it with this worker's next exchange.

        Raises:
            ConfigurationError: `amount` is no whole number from 0 to 2**31.
        """
        if not isinstance(amount, int) or isinstance(amount, bool) or not 0 <= amount <= 1 << 31:
            raise ConfigurationError(f"counter.add({amount!r}): a whole number from 0 to 2**31")
        self._state.counted[self._name] += amount

    @property
    def value(self) -> int:
        """What all workers had counted at this worker's last exchange, and what it has added since."""
        return self._state.counters.get(self._name, 0) + self._state.counted[self._name]
