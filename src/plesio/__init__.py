"""plesio: train one PyTorch model on many workers, and choose by one argument how tightly they keep step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plesio import cluster as cluster
from plesio import splits as splits
from plesio.cluster import Cluster as Cluster
from plesio.config.checkpoint import Checkpoint as Checkpoint
from plesio.config.evaluations import Rounds as Rounds
from plesio.config.faults import Kill as Kill
from plesio.config.faults import Pace as Pace
from plesio.config.faults import Slow as Slow
from plesio.config.on_ray import Ray as Ray
from plesio.config.simulated import Simulated as Simulated
from plesio.config.until import MetricMissingError as MetricMissingError
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
from plesio.protocol.coding import ProtocolError as ProtocolError
from plesio.protocol.journal import JournalError as JournalError
from plesio.strategy import Strategy as Strategy
from plesio.strategy.answers import Krum as Krum
from plesio.strategy.answers import LowRank as LowRank
from plesio.strategy.answers import Privacy as Privacy
from plesio.strategy.answers import Seconds as Seconds
from plesio.strategy.answers import SecureSums as SecureSums
from plesio.strategy.answers import Steps as Steps
from plesio.strategy.answers import TrimmedMean as TrimmedMean
from plesio.strategy.recipes import recipe as recipe
from plesio.strategy.recipes.asynchronous import *
from plesio.strategy.recipes.auto import *
from plesio.strategy.recipes.deltas import *
from plesio.strategy.recipes.federated import *
from plesio.strategy.recipes.local import *
from plesio.strategy.recipes.phases import *
from plesio.strategy.recipes.synchronous import *

if TYPE_CHECKING:
    from plesio import ray as ray
    from plesio.experience.queue import Queue as Queue
    from plesio.launch.remote.join import join as join
    from plesio.launch.remote.read import read as read
    from plesio.launch.remote.table_server import join_server as join_server
    from plesio.launch.replayed.repeatable import ReplayError as ReplayError
    from plesio.launch.replayed.replay import Replayed as Replayed
    from plesio.launch.replayed.replay import replay as replay
    from plesio.launch.result import EvaluateError as EvaluateError
    from plesio.launch.result import Run as Run
    from plesio.launch.rounds import Round as Round
    from plesio.observe import sinks as sinks
    from plesio.runner import run as run
    from plesio.tables.module import Table as Table
    from plesio.tables.module import TableBag as TableBag
    from plesio.tables.spec import RowAdagrad as RowAdagrad
    from plesio.tables.spec import RowAdam as RowAdam
    from plesio.tables.spec import RowSGD as RowSGD
    from plesio.tables.spec import Seen as Seen
    from plesio.tables.spec import Unused as Unused
    from plesio.tables.strings import ids_of as ids_of
    from plesio.transport.secure import ProofError as ProofError
    from plesio.transport.wire import RemoteProtocolError as RemoteProtocolError
    from plesio.worker.clients.description import Clients as Clients
    from plesio.worker.worker import Worker as Worker

_NEED_TORCH = {
    "plesio.experience.queue": ("Queue",),
    "plesio.launch.replayed.repeatable": ("ReplayError",),
    "plesio.launch.replayed.replay": ("Replayed", "replay"),
    "plesio.launch.remote.join": ("join",),
    "plesio.launch.remote.read": ("read",),
    "plesio.launch.remote.table_server": ("join_server",),
    "plesio.transport.secure": ("ProofError",),
    "plesio.transport.wire": ("RemoteProtocolError",),
    "plesio.launch.result": ("EvaluateError", "Run"),
    "plesio.launch.rounds": ("Round",),
    "plesio.runner": ("run",),
    "plesio.tables.module": ("Table", "TableBag"),
    "plesio.tables.spec": ("RowAdagrad", "RowAdam", "RowSGD", "Seen", "Unused"),
    "plesio.tables.strings": ("ids_of",),
    "plesio.worker.clients.description": ("Clients",),
    "plesio.worker.worker": ("Worker",),
}
"""Names that are imported when they are first used: `plesio strategies` need not wait for torch."""

_MODULES = {"ray": "plesio.ray", "sinks": "plesio.observe.sinks"}

__version__ = "0.1.0"


if not TYPE_CHECKING:  # or a type checker would take a mistyped `ps.name` for one of these

    def __getattr__(name: str) -> Any:
        from plesio.strategy.recipes.elsewhere import known_elsewhere

        if name == "__all__":
            return __dir__()
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        for module, names in _NEED_TORCH.items():
            if name in names:
                globals()[name] = value = getattr(importlib.import_module(module), name)
                return value
        same = known_elsewhere(name, "ps.")  # of a mistyped name Python itself says what is closest
        raise AttributeError(f"module 'plesio' has no attribute {name!r}{f'; {same}' if same else ''}")


def __dir__() -> list[str]:
    """The public names: those imported from plesio's modules, now or later."""
    own = {name for name, one in globals().items() if getattr(one, "__module__", "").startswith("plesio.")}
    return sorted({"cluster", "sinks", "splits", *own, *(name for names in _NEED_TORCH.values() for name in names)})
