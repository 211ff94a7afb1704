"""Where a worker works: its connection to whoever decides.

`plesio.worker.Worker` is what the training function sees; everything it needs from outside comes by its station. There is
one for a process beside a server (`plesio.worker_process`), and one for a greenlet under the virtual or a recorded clock
(`plesio.greenlets`).
"""

from __future__ import annotations

from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from plesio.engine.messages import LeaseReply
from plesio.exchange import Exchange, Standing, Used


class Station(Protocol):
    """What a worker asks of its surroundings."""

    rank: int
    workers: int
    seed: int
    server_pid: int
    standing: Standing

    def now_s(self) -> float:
        """The time, in seconds from any beginning."""
        ...

    def join(self, model: nn.Module, optimizer: Optimizer, used: Used) -> tuple[Exchange, nn.Module]:
        """Take part with this model and optimizer; returns when training begins, with the model to call."""
        ...

    def lease(self, epoch: int, total: int, most: int, unused: int, digest: int) -> LeaseReply:
        """Data to work on; the arguments are those of a `plesio.engine.messages.LeaseRequest`."""
        ...

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        """Pass on what the training function logged over its last `steps` steps."""
        ...

    def stop(self, why: str) -> None:
        """Ask for the end of the whole run."""
        ...

    def leave(self) -> None:
        """The training function returned without ever taking part."""
        ...
