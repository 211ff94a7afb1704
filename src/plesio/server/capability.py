"""The port of a capability at the server: something that a run may be able to do, of which one that cannot pays nothing.

A capability is a file of `plesio.server.capabilities`. It sees the program as `Serving`, and gives what it needs of this:

| it gives    | and the program                                                                               |
| ----------- | --------------------------------------------------------------------------------------------- |
| `actions`   | does effects of these kinds by it                                                             |
| `supplies`  | has it supply workers that need something of these kinds                                      |
| `orders`    | has it do what whoever watches the run orders, of these kinds                                 |
| `nbytes`    | asks it how many bytes go with these messages, but for parameters (in virtual time)           |
| `begun`     | calls it when there is a model                                                                |
| `stopped`   | calls it when the run is to end                                                               |
| `went_back` | calls it when the run goes on from a checkpoint, and nobody is a member                       |
| `joined`    | calls it when a process has taken a worker's seat, before the sequencer hears of it           |
| `came`      | calls it with a contribution that brings attachments, before the sequencer hears of it             |
| `folded`    | calls it when a version is made                                                               |
| `discarded` | calls it when a contribution is not to count                                                  |
| `answering` | calls it with an answer, before the memory says where what it names lies                      |
| `unsettled` | writes no checkpoint while it holds                                                           |
| `left_over` | hands files with these descriptors over at the end, too                                       |

The program asks at its start who gives what of a contribution (`plesio.capabilities.those_with`). Drivers know the program alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Any, Protocol

from plesio.core.events import Discard, Event, Fold
from plesio.core.sequencer import Sequencer
from plesio.memory.port import Memory
from plesio.observe.meter import Meter
from plesio.protocol.launcher import StopRequest
from plesio.protocol.worker import Answer, Contribution
from plesio.server.checkpointer import Checkpointer
from plesio.server.interfaces import Replies
from plesio.server.recording import Recorder
from plesio.strategy import Strategy

Supplies = Callable[[int, int, Any, float], bool]
"""Whether a worker is a member: by worker, incarnation, what it needs, and the time."""


class Serving(Protocol):
    """What a capability sees of the server's program, and may have it do."""

    sequencer: Sequencer
    memory: Memory
    replies: Replies
    recorder: Recorder
    checkpointer: Checkpointer
    strategy: Strategy
    listening: list[bool]
    by_round: bool
    now_s: float

    @property
    def meter(self) -> Meter: ...
    def tell(self, message: StopRequest) -> None: ...
    def standing(self, now_s: float) -> tuple[float, int, int]: ...
    def keep(self, now_s: float) -> None: ...
    def keep_late(self, now_s: float) -> None: ...
    def receive(self, event: Event, now_s: float, loss: float = nan) -> bool: ...
    def take_strategy(self) -> None: ...
    def trouble(self, worker: int | None, what: str, fatal: str = "", kind: str = "", died: bool = False) -> None: ...


class Capability:
    """One that gives nothing, of the run that `program` serves."""

    actions: Mapping[type, Callable[[Any], None]] = {}
    supplies: Mapping[type, Supplies] = {}
    orders: Mapping[type, Callable[[Any, float], None]] = {}
    nbytes: Mapping[type, Callable[[int, Any], int]] = {}
    """Of a contribution, by worker and message; of a supply, by worker and what it asked."""

    def __init__(self, program: Serving) -> None:
        self.program = program

    @staticmethod
    def is_of(program: Serving) -> bool:
        """Whether the run has it."""
        return True

    def begun(self, resumed: bool, now_s: float) -> None: ...
    def stopped(self, now_s: float) -> None: ...
    def went_back(self) -> None: ...
    def joined(self, worker: int, now_s: float) -> None: ...
    def came(self, worker: int, incarnation: int, made: Contribution) -> None: ...
    def folded(self, fold: Fold) -> None:
        """`ConfigurationError`, `CheckpointError`: the run cannot go on."""

    def discarded(self, discard: Discard) -> None: ...
    def answering(self, answer: Answer) -> None: ...
    def unsettled(self) -> bool:
        return False

    def left_over(self) -> tuple[int, ...]:
        return ()
