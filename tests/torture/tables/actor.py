"""A table server as an actor: it does what lies in its pipe, in that order, each a while later."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plesio.launch.local.table_server import TableServer
from plesio.protocol.table_server import Begin, Lay
from plesio.transport.channel import ChannelClosedError

if TYPE_CHECKING:
    from torture.world import World

LEAST_S = 0.0005
LAG_S = 0.3
"""How late it may be, where it lags."""


class Actor(TableServer):
    """One table server, and the pipe at whose other end the head's `TableLink` is. The head waits for what it `ask`s: by then
    all before that is done."""

    def __init__(self, world: World) -> None:
        super().__init__(lambda message, descriptors: self._said.append((message, descriptors)))
        self.alive = True
        assert world.rows is not None
        self._world, self._rows = world, world.rows
        self._lag_s = LAG_S if "table servers lag" in world.plan.faults else 0.0
        self._due_s = 0.0
        self.todo: deque[tuple[float, Any, Sequence[int]]] = deque()
        self._said: deque[tuple[Any, Sequence[int]]] = deque()

    # The pipe

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Of the head."""
        if isinstance(message, Begin):
            descriptors = [os.dup(one) for one in descriptors]
        agenda = self._world.agenda
        late_s = LEAST_S + self._lag_s * self._world.random() ** 4
        self._due_s = max(self._due_s, agenda.now_s + late_s)
        self.todo.append((self._due_s, message, descriptors))
        agenda.at(self._due_s, self._work)

    def receive(self, timeout_s: float, what: str = "") -> tuple[Any, Sequence[int]]:
        """The head waits for an answer."""
        while self.todo and self.alive:
            self._step()
        if not self._said:
            raise ChannelClosedError("the table server is gone")
        return self._said.popleft()

    # What it does

    def _work(self, _: object, __: object) -> None:
        while self.alive and self.todo and self.todo[0][0] <= self._world.agenda.now_s:
            self._step()

    def _step(self) -> None:
        _, message, descriptors = self.todo.popleft()
        self._do(message, descriptors)
        if isinstance(message, Lay):
            self._rows.served(message.reader)

    def close(self) -> None:
        """Its process ends."""
        self.alive = False
        self.todo.clear()
