"""Who does the folding?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """A server process that owns the global parameters."""

    def __str__(self) -> str:
        return "server"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """The workers among themselves, by `torch.distributed`."""

    def __str__(self) -> str:
        return "all-reduce"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Every worker its own, in place and without a lock."""

    def __str__(self) -> str:
        return "shared memory"
