"""What the sequencer decided, as its worker is told: in a message, and over its pipes where it is a process."""

from __future__ import annotations

import time

from plesio.core.events import Cancel, Discard, Evict, Grant, Verdict
from plesio.protocol.worker import Beginning, GoOn, LeaseReply, Refused
from plesio.server.checkpointer import Checkpointer
from plesio.server.checkpoints import Progress
from plesio.server.lines import Line
from plesio.transport.doorbell import Located, write_answer


def answer_to(effect: Grant | Cancel, buffer: int, before: Progress, stop: bool = False) -> Located:
    """For a worker that is to go on from `buffer`; `before`: what it did before the run was resumed.

    >>> answer_to(Cancel(worker=0, number=7, version=5), 2, Progress())
    Located(answer=GoOn(version=5, stop=False, verdict=<Verdict.CANCELLED: 3>, staleness=0, payload=()), buffer=2)
    """
    if isinstance(effect, Cancel):
        return Located(GoOn(effect.version, stop, Verdict.CANCELLED), buffer)
    if effect.number:
        return Located(GoOn(effect.version, stop, effect.verdict, effect.staleness), buffer)
    return Located(Beginning(effect.version, stop, before.contributions, before.steps), buffer)


class PipeReplies:
    """Answers the workers at `lines`: over their pipes, and on their channels.

    Attributes:
        unresponsive: workers that there was no room to answer, to be cut off when all is done.
        evicted_lines: those of workers that are members no longer, to be hung up.
    """

    def __init__(self, lines: list[Line], checkpointer: Checkpointer) -> None:
        self._lines = lines
        self._checkpointer = checkpointer
        self.stopping = False
        self.unresponsive: list[Line] = []
        self.evicted_lines: list[Line] = []
        self.now_s = time.monotonic

    def granted(self, effect: Grant | Cancel, buffer: int) -> float:
        """Write into its pipe."""
        line, before = self._lines[effect.worker], self._checkpointer.before[effect.worker]
        try:
            write_answer(line.answer, *answer_to(effect, buffer, before, self.stopping))
        except BlockingIOError:
            self.unresponsive.append(line)
        return time.monotonic()

    called_off = granted
    """The same, unasked."""

    def leased(self, worker: int, reply: LeaseReply) -> None:
        """Tell it on its channel."""
        self._lines[worker].say(reply)

    def refused(self, worker: int, why: str) -> None:
        """Tell it on its channel: it raises that."""
        self._lines[worker].say(Refused("ConfigurationError", why))

    def repeated(self, discard: Discard) -> None:
        """Its worker has the answer: pipes lose nothing."""

    def evicted(self, evict: Evict) -> None:
        """Its line is hung up once all is done."""
        self.evicted_lines.append(self._lines[evict.worker])
