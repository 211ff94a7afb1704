"""What the core asks of a strategy. `plesio.strategy.strategy.Strategy` answers; so may a test's own object."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """What is known of a contribution when it is weighed: a later answer's new need is one more field here.

    Args:
        staleness: versions folded since the one it was computed from.
        workers: how many the run was asked to have.
        work: its samples, or its steps where nobody knows them.
        version: the version it comes to, so the number of folds so far.
        epochs: passes over the data that are in the parameters; 0 where the loop's data is its own.
    """

    staleness: int
    workers: int
    work: int
    version: int
    epochs: float


class Admits(Protocol):
    """Does a contribution count?"""

    def admits(self, staleness: int) -> bool: ...


class Weighs(Protocol):
    """How much?"""

    @property
    def normalised(self) -> bool: ...

    def weight(self, one: Arrival) -> float: ...


class Gathers(Protocol):
    """When do contributions become a version?"""

    def size(self, reachable: int | None) -> int: ...


class Scales(Protocol):
    """By how much of the learning rate do they move it?"""

    def scale(self, folded: int, workers: int) -> float: ...


class Releases(Protocol):
    """Who may go on?"""

    @property
    def after_fold(self) -> bool: ...

    @property
    def cancel_late(self) -> bool: ...

    def may_go(self, clock: int, slowest: int) -> bool: ...


class Questions(Protocol):
    """The questions the sequencer asks; the others (what is sent, how it is corrected) concern tensors only."""

    @property
    def admit(self) -> Admits: ...

    @property
    def weigh(self) -> Weighs: ...

    @property
    def gather(self) -> Gathers: ...

    @property
    def outer(self) -> Scales: ...

    @property
    def release(self) -> Releases: ...
