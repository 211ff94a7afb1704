"""What the sequencer decided, as its worker is told."""

from __future__ import annotations

from plesio.core.events import Cancel, Grant, Verdict
from plesio.protocol.worker import Beginning, GoOn
from plesio.server.checkpoints import Progress
from plesio.transport.doorbell import Located


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
