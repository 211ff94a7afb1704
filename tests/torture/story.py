"""Letters in words."""

from __future__ import annotations

from collections.abc import Sequence

from plesio.core.events import Cancel, Grant, Joined, Leased, LeaseWanted, Left, Pushed
from torture.model import Contribution
from torture.sessions.envelopes import (
    UNASKED,
    Answer,
    Beat,
    Fenced,
    FromServer,
    FromWorker,
    Received,
    Request,
)


def words(letter: FromWorker | FromServer, payload: int, made: Sequence[Contribution]) -> str:
    """One line: who tells whom what.

    >>> words(Received(2, 1, 1, 5), -1, [])
    'server tells worker 2 that request 5 was received'
    """
    match letter:
        case Request(event=Joined() as event):
            return f"worker {event.worker} joins as incarnation {event.incarnation}"
        case Request(event=Pushed() as event):
            return f"worker {event.worker} pushes {event.number} (from version {made[payload].computed_from})"
        case Request(event=LeaseWanted() as event):
            return f"worker {event.worker} asks for data of epoch {event.epoch}"
        case Request(event=Left() as event):
            return f"worker {event.worker} is done"
        case Beat(serial=serial):
            waits = "" if serial == UNASKED else f", waits for the answer to request {serial}"
            return f"worker {letter.worker} is alive{waits}"
        case Answer(effect=Grant(number=0) as effect):
            return f"server lets worker {letter.worker} in at version {effect.version} (epoch {letter.epoch})"
        case Answer(effect=Grant() as effect):
            verdict = effect.verdict.words
            return f"server answers {effect.number} of worker {letter.worker}: {verdict}, go on from {effect.version}"
        case Answer(effect=Leased() as effect):
            return f"server leases worker {letter.worker} {len(effect.batches)} batches"
        case Answer(effect=Cancel() as effect):
            return f"server calls off {effect.number} of worker {letter.worker}, go on from {effect.version}"
        case Received():
            return f"server tells worker {letter.worker} that request {letter.serial} was received"
        case Fenced():
            return f"server tells worker {letter.worker} that incarnation {letter.incarnation} is no member"
