"""One worker of a recorded run: what a clock and the network told it then is read from the journal."""

from __future__ import annotations

from collections import deque
from itertools import islice, takewhile
from typing import Any

from plesio.core.events import Abandoned, Joined, LeaseWanted, Left, Pushed, RowsWanted, Whereabouts, WorkerEvent
from plesio.launch.one_process.greenlets import GreenletWorker, Peek, Request, StillTimer, Watcher
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.protocol.worker import LeaseReply, LeaseRequest, Need
from plesio.transport.doorbell import Located
from plesio.worker.data.use import DataUse


class RecordedWorker(Watcher):
    """One worker of the recorded run: the greenlet, what it wants, and what the journal has of it from here on (`upcoming`).

    It is also its strategy's answer to `every`: how long it trains on its own.
    """

    away = True  # whether it went on while an answer travelled, or asked for data ahead, is in the journal
    each_step = answered = False  # it is asked each time

    def __init__(self) -> None:
        self.upcoming: deque[WorkerEvent] = deque()
        self.joins: deque[Joined] = deque()  # of which there are upcoming
        self.worker: GreenletWorker | None = None
        self.request: Request | None = None
        self.incarnation = 0
        self.asked_ahead = False  # for data, which is the next that the journal has of it
        self.called_off: deque[Located] = deque()  # steps that were, while nobody had noticed yet
        self.timer = StillTimer()
        self._in_flight = False  # its last contribution, while it goes on,
        self._looks = 0  # how often it looked since whether the answer has come,
        self._answer: Located | None = None  # and that, once it has
        self._lease: LeaseReply | None = None  # data that it has not taken yet
        self.rows_asked: RowsRequest | None = None  # ahead,
        self._rows_came = False  # and whether they are there

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
        self._in_flight, self._answer, self._lease = False, None, None
        self.rows_asked, self._rows_came = None, False

    def hear(self, answer: Any) -> None:
        """It is answered, and runs up to its next request that somebody else answers."""
        assert self.worker is not None, "nobody else is answered"
        if answer is None:  # its contribution came, and it goes on
            self._in_flight, self._looks = True, 0
        if isinstance(answer, LeaseReply):
            self._lease = answer
        elif isinstance(answer, Located) and self._in_flight:
            self._answer = answer
        elif isinstance(answer, RowsServed) and answer.ahead:
            self._rows_came = True
        else:
            self.request = self.worker.resume(answer)
        while not self.lost:
            if self.request is Peek.LOOK:
                self._looks += 1
                following = self._next_pushed(0)  # says at which look it took the answer
                came = following is not None and following.adopted_at == self._looks
                self.request = self.worker.resume(came)
            elif self.request is Peek.TAKE and self._answer is not None:
                answer, self._answer, self._in_flight = self._answer, None, False
                self.request = self.worker.resume(answer)
            elif isinstance(self.request, LeaseRequest) and self._lease is not None:
                reply, self._lease = self._lease, None
                self.request = self.worker.resume(reply)
            elif isinstance(self.request, RowsRequest) and self.request.ahead and self._rows_came:
                self._rows_came = False
                self.request = self.worker.resume(RowsServed(ahead=True))
            else:
                return

    def goes_on(self) -> bool:
        """Whether it took a step before the answer to the contribution that it is about to send; if nobody knows, or there is no
        step before the next, it may."""
        following = self._next_pushed(1)
        return following is None or following.adopted_at > 0 or not following.steps

    def _next_pushed(self, place: int) -> Pushed | None:
        """The next contribution of this process that is still to come, or the one after that."""
        own = takewhile(lambda event: not isinstance(event, Left | Joined), self.upcoming)
        pushed = (event for event in own if isinstance(event, Pushed))
        return next(islice(pushed, place, None), None)

    def leaves(self) -> bool:
        """Whether it left in good order here: the journal has at most the contribution that it sent with its farewell."""
        own = list(islice(takewhile(lambda event: not isinstance(event, Joined), self.upcoming), 2))
        last = own.pop() if own else None
        if not (isinstance(last, Left) and last.early and self.worker is not None):
            return False
        return not own or (isinstance(own[0], Pushed) and own[0].steps == self.worker.steps_alone)

    def over(self) -> None:
        if self.worker is not None:
            self.worker.kill()
        self.worker = self.request = None

    def ask_ahead(self, need: Need, due: bool = True) -> bool:
        """For data it did here, if that is the next that was heard of it. For rows it did: where among what else it did that was
        heard makes no difference to it."""
        if isinstance(need, RowsRequest):
            self.rows_asked = need
            for event in [one for one in self.upcoming if isinstance(one, RowsWanted) and one.ahead][:1]:
                self.forget(event)
            return True
        following = self.upcoming[0] if self.upcoming else None
        if not (isinstance(following, LeaseWanted) and following.ahead and answers(following, need)):
            return False
        self.upcoming.popleft()
        self.asked_ahead = True
        return True

    def forget(self, event: RowsWanted) -> None:
        """That is no longer to come."""
        if event in self.upcoming:
            self.upcoming.remove(event)

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
        if isinstance(following, Pushed):  # perhaps only at its end, which data that was asked ahead no longer tells
            assert self.worker is not None, "it is under way"
            every = self.worker.strategy.every
            in_time = every.timed or every.due(steps, seconds, version)
            return following.steps == steps and in_time and not following.earlier
        if self.going is not None and isinstance(following, (Left, Joined)):
            worker = self.worker
            assert worker is not None, "it is under way"
            there = worker.state.steps >= self.going.steps or (worker.late and not worker.in_flight)
            return not self.going.asks and there  # who goes on lost its seat while an answer travelled
        return following is None or isinstance(following, (Left, Joined))


def answers(event: LeaseWanted, request: Request | None) -> bool:
    """Whether it is that request; how many batches were asked for depended on time."""
    if not isinstance(request, LeaseRequest):
        return False
    asked = request.epoch, request.total, request.most > 0, request.unused
    return asked == (event.epoch, event.total, event.most > 0, event.unused)
