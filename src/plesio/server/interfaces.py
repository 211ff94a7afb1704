"""What the server's program asks of others: of whoever does the arithmetic, and of whoever answers the workers (and how)."""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import asdict

from plesio.core.events import Cancel, Discard, Evict, Fold, Grant, Verdict
from plesio.protocol.worker import Beginning, Counters, GoOn, LeaseReply
from plesio.server.checkpoints import Progress
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.rows import Rows
from plesio.transport.doorbell import Located


class Folder(Protocol):
    """What the program asks of whoever does the arithmetic (see `plesio.tensors.folding.Folder`)."""

    def set_groups(self, worker: int, groups: Groups) -> None:
        return

    def came(self, worker: int, absent: int, rows: tuple[Rows, ...] = ()) -> None:
        return

    @property
    def row_bytes(self) -> int:
        """What travelled of tables."""
        return 0

    def hold(self, worker: int, weight: float) -> None:
        return

    def fold(self, fold: Fold) -> None:
        return

    def publish(self, reader: int, unasked: bool = False) -> int:
        return 0

    def forget(self, worker: int) -> None:
        return

    def share_among(self, workers: int) -> None:
        return


class NoFolder(Folder):
    """Folds nothing: before there is a model, where workers fold themselves, and in runs that ask for the time only."""


class Replies:
    """How workers are answered: what a driver does for the program. Neither that nor its memory is to be called from in here:
    whoever goes on does so when the event is dealt with."""

    def now_s(self) -> float:
        """The time by now: what was done since the event came took some."""
        return 0.0

    def granted(self, grant: Grant, buffer: int) -> float:
        """A worker goes on from what lies in `buffer`; when it does."""
        raise NotImplementedError

    def called_off(self, cancel: Cancel, buffer: int) -> float | None:
        """A worker is to drop its step and go on from `buffer`; when it did, or None where the driver counts that itself."""
        raise NotImplementedError

    def leased(self, worker: int, reply: LeaseReply) -> None:
        """A worker gets data, or is told that there is none."""
        raise NotImplementedError

    def refused(self, worker: int, why: str) -> None:
        """The data that a worker asks for is not the others': why it cannot go on."""

    def repeated(self, discard: Discard) -> None:
        """A contribution came that was answered before, or whose sender is no member: nobody waits for an answer."""

    def evicted(self, evict: Evict) -> None:
        """A worker is a member no longer, which it may not know."""


def answer_to(effect: Grant | Cancel, buffer: int, before: Progress, counters: Counters, stop: bool = False) -> Located:
    """For a worker that is to go on from `buffer`; `before`: what it did before the run was resumed.

    >>> answer_to(Cancel(worker=0, number=7, version=5), 2, Progress(), {}).answer.verdict
    <Verdict.CANCELLED: 3>
    """
    if isinstance(effect, Cancel):
        return Located(GoOn(effect.version, stop, Verdict.CANCELLED, 0, counters), buffer)
    if effect.number:
        return Located(GoOn(effect.version, stop, effect.verdict, effect.staleness, counters, effect.steps), buffer)
    return Located(
        Beginning(effect.version, stop, **asdict(before), counters=counters, steps_granted=effect.steps), buffer
    )
