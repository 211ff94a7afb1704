"""Which standbys of a head have what of its log: who may be elected, what answers wait for, what may be overwritten."""

from __future__ import annotations

import threading
from collections.abc import Callable

from plesio.launch.standby.contending import Contending
from plesio.transport.replication_log import ALL, ReplicationLog
from plesio.transport.wire import Wire


class Followers:
    """Standbys, by name. Each has a line, and a thread that calls this.

    Args:
        contending: is told who may be elected.
        waits: answers wait for standbys.
        tell: called with how many may be elected.

    Attributes:
        log: None until the server opens one.
        awaited: those that answers wait for, and what each needs to have to be elected.
    """

    def __init__(self, contending: Contending, waits: bool, tell: Callable[[int], None]) -> None:
        self.log: ReplicationLog | None = None
        self.awaited: dict[int, int] = {}
        self._contending, self._waits, self._tell = contending, waits, tell
        self._lock = threading.Lock()  # of what follows
        self._wires: dict[int, Wire] = {}
        self._has: dict[int, int] = {}  # up to where
        self._sent: dict[int, int] = {}  # up to where
        self._electable: set[int] = set()

    def met(self, name: int, wire: Wire) -> None:
        """Its line before may not be known to be lost: this one takes its place."""
        with self._lock:
            before, self._wires[name] = self._wires.get(name), wire
            self._forget(name)
        if before is not None:
            before.cut()

    def sent(self, name: int, at: int) -> None:
        """One was sent the log up to there: what is before may be overwritten."""
        assert self.log is not None, "the server opened it"
        with self._lock:
            self._sent[name] = at
            self.log.sent = min(self._sent.values())

    def heard(self, name: int, wire: Wire, up_to: int) -> None:
        """One has so much. It may be elected once it has all that was answered before answers waited for it."""
        assert self.log is not None, "it has some of it"
        with self._lock:
            if self._wires.get(name) is not wire:  # it has another by now
                return
            self._has[name] = up_to
            if name not in self.awaited:
                self.awaited[name] = 0
                self._say_who_has()
                self.awaited[name] = self.log.written if self._waits else 0
            if name not in self._electable and up_to >= self.awaited[name]:
                self._electable.add(name)
                self._say_electable()
            self._say_who_has()

    def lost(self, name: int, wire: Wire) -> None:
        with self._lock:
            if self._wires.get(name) is wire:
                del self._wires[name]
                self._forget(name)

    def others(self, name: int) -> int:
        """How many there are that answers wait for, beside this one."""
        with self._lock:
            return len(self.awaited.keys() - {name})

    def look(self) -> None:
        """Nobody said anything, and time went by."""
        with self._lock:
            self._say_who_has()

    # With the lock held

    def _forget(self, name: int) -> None:
        """It has nothing of the log, for now at least."""
        self._sent.pop(name, None)
        if self.log is not None:
            self.log.sent = min(self._sent.values(), default=ALL)
        self.awaited.pop(name, None)
        self._electable.discard(name)
        self._say_electable()

    def _say_electable(self) -> None:
        self._contending.set_electable(self._electable)
        self._tell(len(self._electable))

    def _say_who_has(self) -> None:
        """Up to where all have the log that an answer waits for."""
        if self.log is None:
            return
        awaited = self.awaited.keys() | self._contending.awaits if self._waits else ()
        has = min((self._has.get(name, 0) for name in awaited), default=ALL)
        if has != self.log.has:
            self.log.has = has
            self.log.rings_back()
