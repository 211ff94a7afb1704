"""What the server's program asks of others: of whoever does the arithmetic, and of whoever answers the workers."""

from __future__ import annotations

from typing import Protocol

from plesio.core.events import Cancel, Discard, Evict, Fold, Grant
from plesio.protocol.worker import LeaseReply
from plesio.tensors.optimizer_spec import Groups


class Folder(Protocol):
    """What the program asks of whoever does the arithmetic (see `plesio.tensors.folding.Folder`)."""

    def set_groups(self, worker: int, groups: Groups) -> None: ...

    def hold(self, worker: int, weight: float) -> None: ...

    def fold(self, fold: Fold) -> None: ...

    def publish(self, reader: int, unasked: bool = False) -> int: ...

    def forget(self, worker: int) -> None: ...


class NoFolder:
    """Folds nothing: before there is a model, where workers fold themselves, and in runs that ask for the time only."""

    def set_groups(self, worker: int, groups: Groups) -> None:
        """Nothing is stepped."""

    def hold(self, worker: int, weight: float) -> None:
        """Nothing to add."""

    def fold(self, fold: Fold) -> None:
        """Nothing to move."""

    def publish(self, reader: int, unasked: bool = False) -> int:
        """The one buffer there is not."""
        return 0

    def forget(self, worker: int) -> None:
        """Nothing was kept."""


class Replies(Protocol):
    """How workers are answered: what a driver does for the program.

    Neither the program nor its memory is to be called from in here: whoever goes on does so when the event is dealt with.
    """

    def now_s(self) -> float:
        """The time by now: what was done since the event came took some."""
        ...

    def granted(self, grant: Grant, buffer: int) -> float:
        """A worker goes on from what lies in `buffer`; when it does."""
        ...

    def called_off(self, cancel: Cancel, buffer: int) -> float | None:
        """A worker is to drop its step and go on from `buffer`; when it did, or None where the driver counts that itself."""
        ...

    def leased(self, worker: int, reply: LeaseReply) -> None:
        """A worker gets data, or is told that there is none."""
        ...

    def refused(self, worker: int, why: str) -> None:
        """The data that a worker asks for is not the others': why it cannot go on."""
        ...

    def repeated(self, discard: Discard) -> None:
        """A contribution came that was answered before, or whose sender is no member: nobody waits for an answer."""
        ...

    def evicted(self, evict: Evict) -> None:
        """A worker is a member no longer, which it may not know."""
        ...
