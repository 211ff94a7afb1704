"""The exchanges of a run under way, for sinks that trace: a part of them, from the journal, read in the sink's own thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from plesio.core.events import Discard, Fold, Joined, Member, Pushed
from plesio.observe.sinks.feed import Exchange, Settled
from plesio.protocol.journal import Decision, read_journal


class Exchanges:
    """Those of the run whose journal this is, from here on.

    Args:
        share: of all, 0 to 1. The same numbers of each worker's contributions are chosen, so that rounds are whole.
        virtual: the journal's times are not those of this host's monotonic clock, but begin at 0.
    """

    def __init__(self, journal: Path, share: float, virtual: bool) -> None:
        self._journal, self._share = journal, share
        self._read_to = journal.stat().st_size if journal.exists() else 0  # a resumed run begins with what was before
        self._zero_s = time.time() - (0.0 if virtual else time.monotonic())  # in seconds since 1970
        self._free_s: dict[int, float] = {}  # since when each worker has been at its next contribution
        self._came: dict[tuple[int, int, int], tuple[float, float]] = {}  # when it was begun, and arrived

    def new(self) -> Iterator[Settled]:
        """What was settled since the last time."""
        for position, one in read_journal(self._journal).placed(self._read_to):
            self._read_to = position
            if isinstance(one, Decision):
                yield from self._settled(one, one.time_s + self._zero_s)

    def _settled(self, told: Decision, now_s: float) -> Iterator[Settled]:
        event = told.event
        if isinstance(event, Joined):
            self._free_s[event.worker] = now_s
        elif isinstance(event, Pushed):
            began_s = self._free_s.get(event.worker, now_s)
            self._free_s[event.worker] = now_s
            if self._is_chosen(event.number):
                self._came[event.worker, event.incarnation, event.number] = began_s, now_s
        for effect in told.effects:
            if isinstance(effect, Fold):
                folded = tuple(filter(None, (self._of(one, now_s, "folded") for one in effect.members)))
                if folded:
                    yield Settled(now_s, effect.version, folded)
            elif isinstance(effect, Discard) and (
                lost := self._of(effect, now_s, f"discarded: {effect.verdict.words}")
            ):
                yield Settled(now_s, None, (lost,))

    def _of(self, one: Member | Discard, now_s: float, what: str) -> Exchange | None:
        self._free_s[one.worker] = now_s
        if (came := self._came.pop((one.worker, one.incarnation, one.number), None)) is None:
            return None
        return Exchange(one.worker, one.number, *came, what, one.staleness, one.samples)

    def _is_chosen(self, number: int) -> bool:
        return int(number * self._share) > int((number - 1) * self._share)
