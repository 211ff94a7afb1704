"""plesio: train one PyTorch model on many workers, and choose by one argument how tightly they keep step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plesio import cluster
    from plesio.cluster import Cluster
    from plesio.config.checkpoint import Checkpoint
    from plesio.config.faults import Kill, Pace, Slow
    from plesio.config.simulated import Simulated
    from plesio.config.until import Until
    from plesio.errors import (
        CheckpointError,
        ConfigurationError,
        DeadlineError,
        ModelMismatchError,
        NonFiniteError,
        PlesioError,
        RunInterrupted,
        ServerLostError,
        SharedMemoryError,
        StepCancelled,
        StopRun,
        StrategyError,
        WorkerError,
        WorkerLostError,
    )
    from plesio.launch.replayed.replay import Replayed, ReplayError, replay
    from plesio.protocol.journal import JournalError
    from plesio.runner import EvaluateError, Run, run
    from plesio.strategy import Strategy
    from plesio.strategy.answers import Seconds, Steps
    from plesio.strategy.recipes import (
        allreduce,
        async_sgd,
        bounded_staleness,
        buffered,
        first_of,
        hogwild,
        local_sgd,
        recipe,
        rennala,
        ringmaster,
        sync_sgd,
    )
    from plesio.worker.worker import Worker

_HOMES = {
    "plesio.cluster": ("Cluster",),
    "plesio.config.checkpoint": ("Checkpoint",),
    "plesio.errors": (
        "CheckpointError",
        "ConfigurationError",
        "DeadlineError",
        "ModelMismatchError",
        "NonFiniteError",
        "PlesioError",
        "RunInterrupted",
        "ServerLostError",
        "SharedMemoryError",
        "StepCancelled",
        "StopRun",
        "StrategyError",
        "WorkerError",
        "WorkerLostError",
    ),
    "plesio.config.faults": ("Kill", "Pace", "Slow"),
    "plesio.protocol.journal": ("JournalError",),
    "plesio.strategy.recipes": (
        "allreduce",
        "async_sgd",
        "bounded_staleness",
        "buffered",
        "first_of",
        "hogwild",
        "local_sgd",
        "recipe",
        "rennala",
        "ringmaster",
        "sync_sgd",
    ),
    "plesio.launch.replayed.replay": ("Replayed", "ReplayError", "replay"),
    "plesio.strategy.answers": ("Seconds", "Steps"),
    "plesio.runner": ("EvaluateError", "Run", "run"),
    "plesio.config.simulated": ("Simulated",),
    "plesio.config.until": ("Until",),
    "plesio.strategy.strategy": ("Strategy",),
    "plesio.worker.worker": ("Worker",),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}
_SUBMODULES = ("cluster",)

__version__ = "0.1.0"
__all__ = [  # spelled out for type checkers
    "Checkpoint",
    "CheckpointError",
    "Cluster",
    "ConfigurationError",
    "DeadlineError",
    "EvaluateError",
    "JournalError",
    "Kill",
    "ModelMismatchError",
    "NonFiniteError",
    "Pace",
    "PlesioError",
    "ReplayError",
    "Replayed",
    "Run",
    "RunInterrupted",
    "Seconds",
    "ServerLostError",
    "SharedMemoryError",
    "Simulated",
    "Slow",
    "StepCancelled",
    "Steps",
    "StopRun",
    "Strategy",
    "StrategyError",
    "Until",
    "Worker",
    "WorkerError",
    "WorkerLostError",
    "allreduce",
    "async_sgd",
    "bounded_staleness",
    "buffered",
    "cluster",
    "first_of",
    "hogwild",
    "local_sgd",
    "recipe",
    "rennala",
    "replay",
    "ringmaster",
    "run",
    "sync_sgd",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `plesio strategies` need not wait for torch."""
    if name in _SUBMODULES:
        return importlib.import_module(f"plesio.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'plesio' has no attribute {name!r}")
    home = importlib.import_module(_WHERE[name])
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_SUBMODULES})
