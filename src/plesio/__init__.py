"""plesio: train one PyTorch model on many workers, and choose by one argument how tightly they keep step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these lines are for type checkers, the table below for the program
    from plesio import cluster as cluster
    from plesio.cluster import Cluster as Cluster
    from plesio.config.checkpoint import Checkpoint as Checkpoint
    from plesio.config.faults import Kill as Kill
    from plesio.config.faults import Pace as Pace
    from plesio.config.faults import Slow as Slow
    from plesio.config.simulated import Simulated as Simulated
    from plesio.config.until import Until as Until
    from plesio.errors import CheckpointError as CheckpointError
    from plesio.errors import ConfigurationError as ConfigurationError
    from plesio.errors import DeadlineError as DeadlineError
    from plesio.errors import ModelMismatchError as ModelMismatchError
    from plesio.errors import NonFiniteError as NonFiniteError
    from plesio.errors import PlesioError as PlesioError
    from plesio.errors import RunInterrupted as RunInterrupted
    from plesio.errors import ServerLostError as ServerLostError
    from plesio.errors import SharedMemoryError as SharedMemoryError
    from plesio.errors import StepCancelled as StepCancelled
    from plesio.errors import StopRun as StopRun
    from plesio.errors import StrategyError as StrategyError
    from plesio.errors import WorkerError as WorkerError
    from plesio.errors import WorkerLostError as WorkerLostError
    from plesio.launch.replayed.replay import Replayed as Replayed
    from plesio.launch.replayed.replay import ReplayError as ReplayError
    from plesio.launch.replayed.replay import replay as replay
    from plesio.protocol.coding import ProtocolError as ProtocolError
    from plesio.protocol.journal import JournalError as JournalError
    from plesio.runner import EvaluateError as EvaluateError
    from plesio.runner import Run as Run
    from plesio.runner import run as run
    from plesio.strategy.answers import Seconds as Seconds
    from plesio.strategy.answers import Steps as Steps
    from plesio.strategy.recipes import recipe as recipe
    from plesio.strategy.recipes.asynchronous import *
    from plesio.strategy.recipes.local import *
    from plesio.strategy.recipes.lock_free import *
    from plesio.strategy.recipes.synchronous import *
    from plesio.strategy.strategy import Strategy as Strategy
    from plesio.worker.worker import Worker as Worker

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
    "plesio.protocol.coding": ("ProtocolError",),
    "plesio.protocol.journal": ("JournalError",),
    "plesio.strategy.recipes": ("recipe",),
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


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `plesio strategies` need not wait for torch."""
    if name == "__all__":
        return sorted({*_WHERE, *_SUBMODULES, *_recipes()})
    if name in _SUBMODULES:
        return importlib.import_module(f"plesio.{name}")
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
    elif not name.startswith("_") and name in _recipes():
        value = _recipes()[name]
    else:
        raise AttributeError(f"module 'plesio' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


def _recipes() -> dict[str, Any]:
    """The recipes by name, each listed in its own family's file."""
    recipes = importlib.import_module("plesio.strategy.recipes")
    return getattr(recipes, "RECIPES", {})  # none while that module is being imported itself
