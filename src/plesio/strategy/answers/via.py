"""Who does the folding?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that owns the global parameters."""

    at_server: ClassVar[bool] = True
    in_shared_memory: ClassVar[bool] = False
    by_collective: ClassVar[bool] = False

    def __str__(self) -> str:
        return "server"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The workers among themselves, by `torch.distributed`, each in a replica of its own."""

    at_server: ClassVar[bool] = False
    in_shared_memory: ClassVar[bool] = False
    by_collective: ClassVar[bool] = True

    def __str__(self) -> str:
        return "all-reduce"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Every worker its own, in place and without a lock."""

    at_server: ClassVar[bool] = False
    in_shared_memory: ClassVar[bool] = True
    by_collective: ClassVar[bool] = False

    def __str__(self) -> str:
        return "shared memory"


Via = Server | AllReduce | SharedMemory
