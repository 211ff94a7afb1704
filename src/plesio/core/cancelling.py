"""Whose work a fold left behind, where late work is called off.

A worker is called off once. The next time is after it is heard to have dropped its work, or to have sent it before it knew: one
that does not look must not find a pile of messages when it does. If the version it goes on from is old by then, it is called
off again, for the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from plesio.core.events import Cancel, Discard, Effect, Show, Verdict
from plesio.core.membership import Seat


def call_off(seats: Iterable[Seat], version: int) -> Iterator[Effect]:
    """Cancel what those of `seats` compute from an older version, unless told already; that answers their next contribution."""
    for seat in seats:
        if seat.waiting is None and seat.computing < version and not seat.called_off:
            worker, number = seat.worker, seat.next_number
            yield Discard(worker, seat.incarnation, number, Verdict.CANCELLED, version - seat.computing)
            yield Show(worker, version, unasked=True)
            yield Cancel(worker, number, version)
            yield from seat.take_owed()
            seat.next_number, seat.computing, seat.called_off = number + 1, version, True
