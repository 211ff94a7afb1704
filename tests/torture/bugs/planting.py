"""Bugs by name: each a part with one thing wrong, in the place of the real one for the runs that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from plesio.core.sequencer import Sequencer
from plesio.errors import ConfigurationError, unknown_name
from torture.disk import Disk
from torture.process import Process
from torture.reborn import Log, Reborn, Survivor
from torture.server import Server
from torture.sessions.service import Service
from torture.sessions.session import WorkerSession
from torture.tables.actor import Actor
from torture.tables.desk import Desk
from torture.tables.reborn import Rows
from torture.tables.server import RowServer
from torture.world import Parts

BUGS: dict[str, Parts] = {}


def planted(name: str | None) -> Parts:
    """The parts of a run with that bug; the real ones for None.

    >>> planted("nobody is ever evicted").sequencer.__mro__[1].__name__
    'Sequencer'

    Raises:
        ConfigurationError: no such bug; the known ones are listed.
    """
    if name is None:
        return Parts()
    if name not in BUGS:
        raise ConfigurationError(unknown_name("bug", name, BUGS))
    return BUGS[name]


def bug(name: str) -> Callable[[type], type]:
    """Let a part with a bug be known by that name; several classes of a name are planted together."""

    def plant(part: type) -> type:
        field = {
            Sequencer: "sequencer",
            Service: "service",
            WorkerSession: "worker_session",
            Disk: "disk",
            Server: "server",
            Process: "process",
            RowServer: "row_server",
            Actor: "table_server",
            Desk: "desk",
            Reborn: "reborn",
            Log: "log",
            Survivor: "survivor",
            Rows: "rows",
        }[part.__mro__[1]]
        BUGS[name] = replace(BUGS.get(name, Parts()), **{field: part})
        return part

    return plant
