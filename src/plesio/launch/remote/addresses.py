"""The addresses at which a run's head may be: one that is started again on another host has another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from plesio.transport.limits import CONNECT_S
from plesio.transport.wire import ConnectionLostError

T = TypeVar("T")
EACH_S = 3.0
"""How long to try to connect where there is another address to try. A host that is gone answers nothing."""


class Addresses:
    """Of one run, by host and port.

    >>> def attempt(host, port, timeout_s):
    ...     if host == "a":
    ...         raise ConnectionRefusedError(host)
    ...     return host
    >>> of_run = Addresses([("a", 7070), ("b", 7070)])
    >>> of_run.at_one(attempt), of_run.now
    ('b', ('b', 7070))
    """

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        self._addresses = deque(addresses)

    def __str__(self) -> str:
        return " or ".join(f"{host}:{port}" for host, port in self._addresses)

    @property
    def all(self) -> list[tuple[str, int]]:
        return list(self._addresses)

    @property
    def now(self) -> tuple[str, int]:
        """Where the head answered last."""
        return self._addresses[0]

    def at_one(self, attempt: Callable[[str, int, float], T]) -> T:
        """What comes of `attempt(host, port, timeout_s)` where the head answered last, or else at the others. Raises what the
        last of these raises: `OSError` or `ConnectionLostError` where nobody is."""
        timeout_s = EACH_S if len(self._addresses) > 1 else CONNECT_S
        for left in reversed(range(len(self._addresses))):
            try:
                return attempt(*self.now, timeout_s)
            except (OSError, ConnectionLostError):
                self._addresses.rotate(-1)
                if not left:
                    raise
        raise AssertionError("a run has an address")
