"""A thread that has a worker's link while the worker computes and a contribution of it is in flight.

    training thread               carrier                     proxy
    sends, goes on  --outbox-->   sends    --contribution-->
    looks: not yet                sleeps
    looks: over                   takes    <--------answer--

Only one thread uses the link at a time. What else the worker says meanwhile (a log, a request for data) goes out behind the
contribution: frames are not interleaved. An error is raised not here but in the training thread, once that wants the link.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from plesio.launch.remote.link import WorkerLink
from plesio.transport.limits import BEAT_S
from plesio.transport.wire import FrameKind

Outgoing = tuple[FrameKind, bytes, Sequence[memoryview]]


class Carrier:
    """Sends `first`, then what it is told to, and has what comes taken by `take`, until `done()` or `end()`."""

    def __init__(
        self, link: WorkerLink, first: Outgoing, take: Callable[[float], None], done: Callable[[], bool]
    ) -> None:
        self.over = False
        """Whether the link is the training thread's again. What came is there, or the error that `end` raises."""
        self._link = link
        self._take = take
        self._done = done
        self._outbox = [first]
        self._recalled = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()  # held for each use of what is above, but for the link
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="plesio-carrier", daemon=True)
        self._thread.start()

    def say(self, frame: Outgoing) -> bool:
        """Send this, too, without waiting for it; False if it is over."""
        with self._changed:
            if not self.over:
                self._outbox.append(frame)
                os.eventfd_write(self._wake, 1)
            return not self.over

    def wait(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `done()`, or until it is over; whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or done(), timeout_s)
            return self.over

    def end(self) -> None:
        """Have it end, after the call of the link that is under way (each has a deadline), and raise what it met with."""
        with self._changed:
            self._recalled = True
            if not self.over:
                os.eventfd_write(self._wake, 1)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        """Send what there is to send; else wait for what comes."""
        try:
            while not self._ends():
                with self._changed:
                    frames, self._outbox = self._outbox, []
                for frame in frames:
                    self._link.send(*frame)
                if not frames:
                    self._link.wait(self._wake, BEAT_S)
                    with suppress(BlockingIOError):  # it was not that
                        os.eventfd_read(self._wake)
                    self._take(0.0)
        except BaseException as error:
            self._error = error
        with self._changed:
            self.over = True
            os.close(self._wake)
            self._changed.notify_all()

    def _ends(self) -> bool:
        """Whether all is said and done; whoever waits looks, too. Nothing can be said between this and the end."""
        with self._changed:
            self._changed.notify_all()
            self.over = not self._outbox and (self._recalled or self._done())
            return self.over
