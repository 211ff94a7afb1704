"""The port of a capability at the memory: something that a run may be able to do, of which one that cannot pays nothing.

A capability is a file of this room, which says whether a run has it. It gives what it needs of this:

| it gives                      | and the memory                                                                     |
| ----------------------------- | ---------------------------------------------------------------------------------- |
| `actions`                     | has it do effects of these kinds, before it does them itself                       |
| `told`                        | calls it with each contribution, before the sequencer hears of it                  |
| `folding`                     | makes the fold that it answers in place of the one that was decided, or none       |
| `answering`                   | calls it with the answer to a contribution, before the worker hears of it          |
| `joins`                       | calls it when a process is about to be a member                                    |
| `begun`, `begin_anew`         | calls it when training begins, and when nothing waits to be folded any more        |
| `numbers`, `go_on`            | keeps these numbers in a checkpoint, and has it go on from one                     |
| `take_checksum`, `checksum`   | adds it to the checksum of what a fold made, and of all                            |
| `take_news`                   | tells people what it says                                                          |
| `words`                       | knows what is exchanged that is no part of the model, and how many bytes it takes  |
| `sizes_differ`                | counts the bytes of each contribution: they are not all as large                   |
| `nbytes`, `shared_bytes`      | counts what travelled of it, and what it shares with the workers                   |

The memory asks at its start who gives what. A capability does not lead back to the memory: it goes when a run ends, not when
somebody looks for cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Protocol

from plesio.core.events import Fold
from plesio.memory.blocks import Blocks
from plesio.memory.folder import Folder
from plesio.memory.row_tables import ServedRows
from plesio.memory.saved import Kept
from plesio.memory.worker_states import Once, WorkerStates
from plesio.protocol.worker import Contribution, GoOn
from plesio.system.recovery_log import RecoveryLog
from plesio.tensors.arena import Arena


class Stepping(Protocol):
    """Rows of tables, as another capability sees them (`plesio.memory.row_servers`)."""

    stepped: int

    def given(self, worker: int, number: int) -> list[ServedRows]: ...
    def take_checksum(self) -> int: ...


class ModelMemory(Protocol):
    """What a capability sees of the memory that does an effect by it."""

    blocks: Blocks
    states: WorkerStates
    log: RecoveryLog | None
    once: Once
    elsewhere: Set[int]
    dropped: str

    @property
    def rows(self) -> Stepping | None: ...
    @property
    def folder(self) -> Folder: ...
    @property
    def folded(self) -> Arena: ...
    def lay_out_anew(self) -> Folder: ...


Action = Callable[[ModelMemory, Any], None]


class MemoryCapability:
    """One that gives nothing."""

    words: Mapping[int, int] = {}
    sizes_differ = False

    @property
    def actions(self) -> Mapping[type, Action]:
        return {}

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def shared_bytes(self) -> int:
        return 0

    def told(self, worker: int, made: Contribution) -> None: ...
    def folding(self, fold: Fold) -> Fold | None:
        """`ConfigurationError`: what was contributed cannot be folded together."""
        return fold

    def answering(self, worker: int, answer: GoOn) -> None: ...
    def joins(self, worker: int) -> None: ...
    def begun(self, blocks: Blocks, version: int) -> None: ...
    def begin_anew(self) -> None: ...
    def numbers(self) -> dict[str, Any]:
        return {}

    def go_on(self, kept: Kept) -> None: ...
    def take_checksum(self) -> int:
        """That of what changed since the last time, below 2**64."""
        return 0

    def checksum(self) -> int:
        """That of all it has."""
        return 0

    def take_news(self) -> str:
        """What people should know, and nobody took yet; empty if there is nothing more."""
        return ""
