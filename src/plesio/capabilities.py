"""What a run may be able to do beside training has a half in each room that has to do with it. A run without it pays nothing.

Who gives what is asked once, at the start (`those_with`). Most halves are known to their room. What takes a while to load is
loaded where a strategy asks for it, by one list of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

from plesio.strategy import Strategy

P = ParamSpec("P")
R = TypeVar("R")


class LoadedHalves(NamedTuple):
    """The answer that asks for a capability, and the file of each half."""

    asked: Callable[[Strategy], object]
    memory: str
    worker: str


LOADED: tuple[LoadedHalves, ...] = (
    LoadedHalves(lambda of: of.send.secure, "plesio.memory.masked_sums", "plesio.worker.exchanges.secure"),
)


def halves(strategy: Strategy, room: Literal["memory", "worker"]) -> list[Any]:
    """The modules in this room of what the strategy asks for."""
    return [import_module(getattr(one, room)) for one in LOADED if one.asked(strategy) is not None]


def those_with(given: Iterable[object], hook: Callable[Concatenate[Any, P], R]) -> tuple[Callable[P, R], ...]:
    """Of those that have a method of their own for this one of their base, in their order, the method itself.

    >>> class Capability:
    ...     def unsettled(self) -> bool: ...
    >>> class Waits(Capability):
    ...     def unsettled(self) -> bool:
    ...         return True
    >>> [asked() for asked in those_with([Capability(), Waits()], Capability.unsettled)]
    [True]
    """
    return tuple(getattr(one, hook.__name__) for one in given if getattr(type(one), hook.__name__) is not hook)
