"""One worker of a recorded run: what a clock and the network told it then is read from the journal."""

from __future__ import annotations

from collections import deque

from plesio.core.events import Abandoned, Joined, Left, Pushed, Whereabouts
from plesio.launch.one_process.greenlets import GreenletWorker, Request, StillTimer, Watcher
from plesio.protocol.journal import JournalEvent
from plesio.transport.doorbell import Located
from plesio.worker.data.use import DataUse


class RecordedWorker(Watcher):
    """One worker of the recorded run: the greenlet, what it wants, and what the journal has of it from here on (`upcoming`).

    It is also its strategy's answer to `every`: how long it trains on its own.
    """

    def __init__(self) -> None:
        self.upcoming: deque[JournalEvent] = deque()
        self.joins: deque[Joined] = deque()  # of which there are upcoming
        self.worker: GreenletWorker | None = None
        self.request: Request | None = None
        self.incarnation = 0
        self.called_off: deque[Located] = deque()  # steps that were, while nobody had noticed yet
        self.timer = StillTimer()

    @property
    def going(self) -> Whereabouts | None:
        """Where the process that sits here loses its seat, if it comes back."""
        return self.joins[0].at if self.joins else None

    @property
    def lost(self) -> bool:
        """Whether it is there: nothing that it was answered has come."""
        return self.going is not None and self.worker is not None and self.worker.at(self.request) == self.going

    def empty(self) -> None:
        """The process that sat here has no seat any more, and what it was told and had not noticed is lost. It is over, unless it
        comes back."""
        if self.going is None:
            self.over()
        self.incarnation = 0
        self.called_off.clear()

    def over(self) -> None:
        if self.worker is not None:
            self.worker.kill()
        self.worker = self.request = None

    def cancelled(self, used: DataUse) -> bool:
        """The step under way was dropped at this look, or when it was done with this much data."""
        following = self.upcoming[0] if self.upcoming else None
        if not isinstance(following, Abandoned):
            return False
        if following.look:
            return not used.checks or used.checks >= following.look
        return not used.checks and following.batches == used.batches

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        """As many local steps as it took then; a worker that was not heard of again stops where it is."""
        following = self.upcoming[0] if self.upcoming else None
        if isinstance(following, Pushed):
            return following.steps == steps
        if self.going is not None and isinstance(following, (Left, Joined)):
            return not self.going.asks and self.worker is not None and self.worker.state.steps >= self.going.steps
        return following is None or isinstance(following, (Left, Joined))
