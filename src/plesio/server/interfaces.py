"""What the server's program asks of whoever answers the workers."""

from __future__ import annotations

from plesio.core.events import Cancel, Discard, Evict, Grant
from plesio.protocol.launcher import RoundMade
from plesio.protocol.worker import Supply
from plesio.transport.doorbell import Located


class Replies:
    """How workers are answered: what a driver does for the program. Neither that nor its memory is to be called from in here:
    whoever goes on does so when the event is dealt with."""

    def now_s(self) -> float:
        """The time by now: what was done since the event came took some."""
        return 0.0

    def granted(self, grant: Grant, answer: Located) -> float:
        """A worker goes on, as `answer` tells it; when it does."""
        raise NotImplementedError

    def called_off(self, cancel: Cancel, answer: Located) -> float | None:
        """A worker is to drop its step and go on as `answer` tells it; when it did, or None where the driver counts that."""
        raise NotImplementedError

    def decided(self) -> None:
        """All that an event leads to is done: whoever was freed by another may go on now."""

    def wake_at(self, time_s: float) -> None:
        """`Ticked` is to be told at `time_s`; at infinity: no longer."""

    def supplied(self, worker: int, reply: Supply) -> None:
        """A worker gets data, or is told that there is none; or its rows of tables lie in its slot."""
        raise NotImplementedError

    def refused(self, worker: int, why: str) -> None:
        """The data that a worker asks for is not the others': why it cannot go on."""

    def round_ended(self, made: RoundMade) -> None:
        """A version is made, and somebody is to look at it; then `RoundBegins` is to be told."""

    def repeated(self, discard: Discard) -> None:
        """A contribution came that was answered before, or whose sender is no member: nobody waits for an answer."""

    def evicted(self, evict: Evict) -> None:
        """A worker is a member no longer, which it may not know."""
