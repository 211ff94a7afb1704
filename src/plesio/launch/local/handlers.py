"""What is done when one of several descriptors can be read."""

from __future__ import annotations

import select
from collections.abc import Callable


class Handlers:
    """By descriptor; `poller` watches them all."""

    def __init__(self) -> None:
        self.poller = select.poll()
        self._by_descriptor: dict[int, Callable[[], None]] = {}

    def add(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._by_descriptor[descriptor] = handler
        self.poller.register(descriptor, select.POLLIN)

    def remove(self, descriptor: int) -> None:
        if self._by_descriptor.pop(descriptor, None) is not None:
            self.poller.unregister(descriptor)

    def call(self, descriptor: int) -> None:
        """Do it, unless one that was called just now has removed it."""
        if (handler := self._by_descriptor.get(descriptor)) is not None:
            handler()
