"""What a simulated run with tables has beside its parts: memory, folders, and its judge."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plesio.transport.row_slots import RowSlots
from torture.plan import MOST_SERVERS
from torture.tables.judge import Judge
from torture.tables.process import RowProcess
from torture.tables.reborn import RebornRows
from torture.tables.server import RowServer

if TYPE_CHECKING:
    from torture.world import World


class RowsOfRun:
    """Those of `world`; each life of the server has `slots` of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.judge = Judge(world.plan, world.rng.randint(1, MOST_SERVERS))
        self.slots: dict[int, list[RowSlots]] = {}
        self.bell = os.eventfd(0)
        self._folder = TemporaryDirectory()
        self._folders = 0

    def new_folder(self) -> Path:
        """For the rows in a checkpoint."""
        self._folders += 1
        folder = Path(self._folder.name) / str(self._folders)
        folder.mkdir()
        return folder

    def served(self, worker: int) -> None:
        """A table server rings a worker's bell."""
        for process in self._world.seats[worker].processes:
            assert isinstance(process, RowProcess)
            process.served()

    def ended(self) -> None:
        """The run is over."""
        server = self._world.server
        assert isinstance(server, (RowServer, RebornRows))
        assert server.rows is not None
        self.judge.ended(server.rows)

    def close(self) -> None:
        """Let go of everything."""
        for slots in self.slots.values():
            for one in slots:
                one.close()
        self.judge.close()
        os.close(self.bell)
        self._folder.cleanup()
