"""What the core asks of a strategy. `plesio.strategy.strategy.Strategy` answers; so may a test's own object."""

from __future__ import annotations

from typing import Protocol


class Admits(Protocol):
    """Does a contribution count?"""

    def admits(self, staleness: int) -> bool: ...


class Weighs(Protocol):
    """How much?"""

    @property
    def normalised(self) -> bool: ...

    def weight(self, staleness: int, workers: int, work: int) -> float: ...


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
