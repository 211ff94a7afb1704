"""What the processes of a run are told when they start."""

from __future__ import annotations

import msgspec

from plesio.config.faults import Pace
from plesio.server.checkpointer import Keeping


class ServerConfig(msgspec.Struct, frozen=True):
    """What a server process is told when it starts."""

    workers: int
    evaluates: bool
    journals: bool
    stealing: bool
    timeout_s: float
    raise_on_nonfinite: bool
    threads: int
    incarnation: int
    keeping: Keeping


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker process is told when it starts; `slow`: by how many times its steps last longer."""

    worker: int
    workers: int
    seed: int
    evaluates: bool
    timeout_s: float
    threads: int
    server_pid: int
    pace: Pace | None
    slow: float


class EvaluatorConfig(msgspec.Struct, frozen=True):
    """What an evaluator process is told when it starts."""

    every_s: float
