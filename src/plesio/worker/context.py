"""What a worker needs from outside: the time, data, an exchange.

`plesio.launch.participation` is what all contexts have in common. The rest is in `plesio.launch.local.worker_process` for a
process beside a server, in `plesio.launch.remote.worker` for another host, and in `plesio.launch.one_process.greenlets` for a
greenlet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from plesio.observe.clients import Visit
from plesio.reading.place import ReadingPlace
from plesio.tensors.carrying import States
from plesio.worker.data.asking import Lessor
from plesio.worker.data.use import DataUse
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.introduction import Taking
from plesio.worker.own_process import OwnProcess
from plesio.worker.state import WorkerState


class WorkerContext(Lessor, Protocol):
    """What `plesio.worker.worker.Worker` asks of its surroundings."""

    number: int
    workers: int
    seed: int
    server_pid: int
    inline: bool  # whether all workers of the run are in this process
    lenient: bool  # whether the run goes on without a worker that raises
    by_round: bool  # whether somebody looks at each version before the next round begins
    state: WorkerState
    states: str  # the folder for what clients keep; empty where not all workers see the same
    process: OwnProcess
    read_at: ReadingPlace | None  # where the run can be read

    def join(self, given: Taking, used: DataUse) -> tuple[Exchange, nn.Module]:
        """Take part with this; returns when training begins. The model is the one to call."""

    def optimizer_state(self, tensors: Sequence[torch.Tensor]) -> States | None:
        """The state of the optimizer that steps at the server, for the model's `tensors`; None where it cannot be fetched."""

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        """Pass on what the training function logged over its last `steps` steps."""

    def visited(self, visits: tuple[Visit, ...], early: bool = False) -> None:
        """Pass on that clients' turns are over; `early`: what they moved is still to be sent."""

    def stop(self, why: str) -> None:
        """Ask for the end of the whole run."""

    def leave(self) -> None:
        """The training function returned without ever taking part."""
