"""What the sequencer decided, as its worker is told."""

from __future__ import annotations

from plesio.core.events import Cancel, Grant, Verdict
from plesio.protocol.worker import Beginning, GoOn
from plesio.server.checkpoints import Progress


def answer_to(effect: Grant | Cancel, buffer: int, before: Progress, stop: bool = False) -> Beginning | GoOn:
    """For a worker that is to go on from `buffer`; `before`: what it did before the run was resumed.

    >>> answer_to(Cancel(worker=0, number=7, version=5), 2, Progress())
    GoOn(buffer=2, version=5, stop=False, verdict=<Verdict.CANCELLED: 3>, staleness=0)
    """
    if isinstance(effect, Cancel):
        return GoOn(buffer, effect.version, stop, Verdict.CANCELLED)
    if effect.number:
        return GoOn(buffer, effect.version, stop, effect.verdict, effect.staleness)
    return Beginning(buffer, effect.version, stop, before.contributions, before.steps)
