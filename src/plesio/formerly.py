"""Journals of runs in which late workers were called off with every version, and not once until they were heard.

Their decisions are still to come out as they were. No field says which a journal is of, but what was discarded does.
"""

from __future__ import annotations

from collections.abc import Iterable

from plesio.core.events import Abandoned, Discard, Joined, Pushed, Verdict
from plesio.core.membership import Seat
from plesio.core.sequencer import Sequencer
from plesio.journal import Received, Record, Resumed


class InsistentSequencer(Sequencer):
    """Calls off again whoever was, heard or not."""

    def _call_off(self, seat: Seat) -> None:
        super()._call_off(seat)
        seat.called_off = False


def sequencers(records: Iterable[Record]) -> list[type[Sequencer]]:
    """Which decided: one for the beginning, and one for each time the run was resumed.

    >>> late = Discard(0, 1, 7, Verdict.CANCELLED, 1)
    >>> [one.__name__ for one in sequencers([late, late, Resumed(2.0, 9), late])]
    ['InsistentSequencer', 'Sequencer']
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
                found[-1] = InsistentSequencer
            called_off.add(record.worker)
    return found
