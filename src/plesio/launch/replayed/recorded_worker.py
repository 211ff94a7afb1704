"""One worker of a recorded run: what a clock and the network told it then is read from the journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from plesio.core.events import Abandoned, Joined, Left, Pushed
from plesio.launch.greenlets import GreenletWorker, Request
from plesio.protocol.journal import JournalEvent
from plesio.transport.doorbell import Located
from plesio.worker.data_use import DataUse


class RecordedWorker:
    """One worker of the recorded run: the greenlet, what it wants, and what the journal has of it from here on."""

    def __init__(self, upcoming: deque[JournalEvent]) -> None:
        self.upcoming = upcoming
        self.worker: GreenletWorker | None = None
        self.request: Request | None = None
        self.incarnation = 0
        self.called_off: deque[Located] = deque()  # steps that were, while nobody had noticed yet
        self.timer = self

    def holds(self, event: JournalEvent) -> bool:
        """Whether the process that said this is still a member."""
        return self.worker is not None and event.incarnation == self.incarnation

    def empty(self) -> None:
        """The process that sat here is over, with what it was told and had not noticed yet."""
        if self.worker is not None:
            self.worker.kill()
        self.worker = self.request = None
        self.called_off.clear()

    # As a `plesio.launch.greenlets.Watcher`, with a time that stands still

    def cancelled(self, used: DataUse) -> bool:
        """The step under way was dropped at this look, or when it was done with this much data."""
        following = self.upcoming[0] if self.upcoming else None
        if not isinstance(following, Abandoned):
            return False
        if following.look:
            return not used.checks or used.checks >= following.look
        return not used.checks and following.batches == used.batches

    def logged(self, steps: int, metrics: dict[str, float]) -> None:
        """It was logged then."""

    def stop(self, why: str) -> None:
        """It was asked for then; what came of it is in the journal."""

    def rest(self, sleep: Callable[[float], object]) -> None:
        """No time passes."""

    def begin(self) -> None:
        """Nor here."""

    def now_s(self) -> float:
        """The same as ever."""
        return 0.0

    # As a `plesio.strategy.answers.Every`: how long a worker trains on its own

    def due(self, steps: int, seconds: float) -> bool:
        """As many local steps as it took then; a worker that was not heard of again stops where it is."""
        following = self.upcoming[0] if self.upcoming else None
        if isinstance(following, Pushed):
            return following.steps == steps
        return following is None or isinstance(following, (Left, Joined))
