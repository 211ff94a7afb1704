"""When rows of tables are served, and when they step.

A request is served at once, from what was folded before it came. One kind waits: rows that are asked for ahead, where the fold of
the worker's contribution under way is to step rows. These are served after that fold, or when that contribution is called off.
So they are never stale.

Promise: a member that wants rows is served once for each request.
"""

from __future__ import annotations

from plesio.core.events import Effect, FoldRows, Pushed, RowsWanted, Serve
from plesio.core.membership import Seat
from plesio.strategy import Strategy


class RowRequests:
    """The rule of one run."""

    def __init__(self, strategy: Strategy) -> None:
        self._at_once = strategy.rows.at_once
        self._with_fold = strategy.release.after_fold and not self._at_once

    def wanted(self, event: RowsWanted, seat: Seat) -> tuple[Effect, ...]:
        """`seat` wants rows."""
        if event.ahead and self._with_fold and event.number - 1 in (seat.next_number, seat.waiting):
            seat.owed = (Serve(event.worker, event.number, ahead=True),)
            return ()
        return (Serve(event.worker, event.number, event.ahead),)

    def stepped_at_once(self, event: Pushed) -> tuple[Effect, ...]:
        """A contribution is taken, and may wait for its fold."""
        return (FoldRows(event.worker, event.number),) if event.rows and self._at_once else ()
