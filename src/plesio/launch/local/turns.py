"""What there is around the turns of a server's loop: nothing, for a server that does not survive its death.

In a turn a server deals with what came on one descriptor, or lets time go by, or ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from plesio.launch.local.handlers import Handlers
from plesio.memory.capability import MemoryCapability
from plesio.memory.machine import Machine
from plesio.protocol import launcher
from plesio.protocol.launcher import Trouble
from plesio.server.program import Program
from plesio.system.recovery_log import RecoveryLog
from plesio.transport.channel import Channel
from plesio.transport.world import DIRECT, World

TICK, OVER = -1, -2
"""Turns that are not about a descriptor."""


class Served(Protocol):
    """A server, as whoever is around its turns knows it."""

    program: Program
    engine: Channel[launcher.ToServer]
    machine: Machine
    handlers: Handlers

    def take(self, source: int, now_s: float) -> None:
        """Take a turn: about this descriptor, or TICK or OVER."""

    def why_not_durable(self) -> str:
        """Why nobody could go on from what this process leaves; empty if somebody could."""
        ...

    def now_s(self) -> float: ...
    def tell_engine(self, message: Trouble) -> None: ...


class Turns:
    """Those of a server that does not survive."""

    world: World = DIRECT
    """How it hears and acts."""
    log: RecoveryLog | None = None
    """What another process goes on from."""
    beside: Sequence[MemoryCapability] = ()
    """Who is told of what the memory does."""
    journalled: Callable[[bytes], object] | None = None
    """Who is told of what the journal is told."""
    is_old = False
    """Set where a process that was forked before could not go on: its descriptors are others."""

    def of(self, server: Served) -> Callable[[int, float], None]:
        """What takes a turn of the server: `source`, `now_s`."""
        return server.take

    def rest(self, server: Served) -> None:
        """All that came is dealt with."""
