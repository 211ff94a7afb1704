"""Replaying journals of an earlier plesio, which cancelled a late worker at every version, not once until it was heard.

A replay of them has to decide as that one did. No field of a journal says which plesio wrote it, but what was discarded does.
"""

from __future__ import annotations

from collections.abc import Iterable

from plesio.core.events import Abandoned, Discard, Joined, Pushed, Verdict
from plesio.core.membership import Seat
from plesio.core.sequencer import Sequencer
from plesio.protocol.journal import Received, Record, Resumed


class RepeatCancelSequencer(Sequencer):
    """Cancels a late worker at every version, whether or not it was heard since the last cancellation."""

    def _call_off(self, seat: Seat) -> None:
        super()._call_off(seat)
        seat.called_off = False


def sequencers(records: Iterable[Record]) -> list[type[Sequencer]]:
    """The class of sequencer that decided: one for the beginning, and one for each time the run was resumed.

    >>> late = Discard(0, 1, 7, Verdict.CANCELLED, 1)
    >>> [one.__name__ for one in sequencers([late, late, Resumed(2.0, 9), late])]
    ['RepeatCancelSequencer', 'Sequencer']
    """
    found: list[type[Sequencer]] = [Sequencer]
    called_off: set[int] = set()  # and not heard of since
    for record in records:
        if isinstance(record, Resumed):
            found.append(Sequencer)
            called_off.clear()
        elif isinstance(record, Received) and isinstance(record.event, (Abandoned, Pushed, Joined)):
            called_off.discard(record.event.worker)
        elif isinstance(record, Discard) and record.verdict is Verdict.CANCELLED:
            if record.worker in called_off:
                found[-1] = RepeatCancelSequencer
            called_off.add(record.worker)
    return found
