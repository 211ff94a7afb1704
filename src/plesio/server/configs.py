"""What the processes of a run are told when they start, beside the run's settings."""

from __future__ import annotations

import msgspec

from plesio.server.checkpointer import Keeping


class ServerConfig(msgspec.Struct, frozen=True):
    """What only the server process is told."""

    threads: int
    incarnation: int
    keeping: Keeping


class WorkerConfig(msgspec.Struct, frozen=True):
    """What only this worker's process is told."""

    worker: int
    threads: int
    server_pid: int
