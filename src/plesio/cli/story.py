"""A journal for people: one row for what became of each contribution and each worker, in the order it was decided.

A contribution's row is where it was folded or discarded; contributions that were never folded come at the end. Records that
only a replay needs (who was given which data) have no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from plesio.core import events
from plesio.core.events import Discard, Joined, Left, Pushed, Verdict
from plesio.protocol import journal

ON_ARRIVAL = (Verdict.DUPLICATE, Verdict.FENCED)  # about what has just come, not what came before under the same key


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that happened."""

    time_s: float  # since the first record, without the pauses of a run that was resumed
    version: int  # as it was then, a fold's own included
    what: str  # in words
    worker: int | None = None  # whose contribution,
    number: int | None = None  # and which of its own
    computed_from: int | None = None
    staleness: int | None = None
    share: float | None = None  # its part of the fold's mean
    loss: float | None = None  # what its worker last logged
    held_s: float | None = None  # how long it lay before the fold


def story(records: Iterable[journal.Record]) -> Iterator[Row]:
    """The rows of `records`; it holds no more than the contributions that wait for their fold."""
    teller = _Teller()
    for record in records:
        yield from teller.tell(record)
    yield from teller.left_over()


class _Teller:
    def __init__(self) -> None:
        self._zero_s: float | None = None
        self._now_s = 0.0
        self._version = 0
        self._came: dict[tuple[int, int, int], journal.Decision] = {}
        self._latest: journal.Decision | None = None
        self._told: set[str] = set()

    def tell(self, record: journal.Record) -> Iterator[Row]:
        if self._zero_s is None:
            self._zero_s = record.time_s
        elif isinstance(record, journal.Resumed):  # perhaps on another clock: the machine was started anew
            self._zero_s += record.time_s - self._now_s
        self._now_s = record.time_s
        if not isinstance(record, journal.Decision):
            yield self._other(record)
            return
        yield from self._event(record.event, record)
        for effect in record.effects:
            if isinstance(effect, events.Fold):
                self._version = effect.version
                yield from map(self._folded, effect.members)
            elif isinstance(effect, Discard):
                yield self._discarded(effect)
            else:
                yield self._row(f"evicted: silent for {effect.silent_s:.1f} s", effect.worker)

    def left_over(self) -> Iterator[Row]:
        """What came and was never folded."""
        for (worker, _, number), came in self._came.items():
            self._now_s = came.time_s
            yield self._row("held, in no fold", worker, number=number, loss=came and came.loss)

    def _event(self, event: events.Event, told: journal.Decision) -> Iterator[Row]:
        if isinstance(event, Pushed):
            self._latest = told
            self._came.setdefault((event.worker, event.incarnation, event.number), told)
            return
        if isinstance(event, events.Reported):
            self._version += event.versions
        if not isinstance(event, events.WorkerEvent):  # told by the server's note, and by the fold it made
            return
        died = f"worker {event.worker} died"  # as the server's note says
        if isinstance(event, Left) and died in self._told:
            self._told.discard(died)
        elif what := _in_words(event):
            yield self._row(what, event.worker)

    def _folded(self, member: events.Member) -> Row:
        came = self._came.pop((member.worker, member.incarnation, member.number), None)
        return self._row(
            "folded",
            member.worker,
            number=member.number,
            computed_from=self._version - 1 - member.staleness,
            staleness=member.staleness,
            share=member.share,
            loss=came and came.loss,
            held_s=came and self._now_s - came.time_s,
        )

    def _discarded(self, discard: Discard) -> Row:
        key = (discard.worker, discard.incarnation, discard.number)
        came = self._came.get(key)
        if discard.verdict not in ON_ARRIVAL or came is self._latest:
            self._came.pop(key, None)
        known = discard.verdict not in ON_ARRIVAL  # of the others nobody asked what they were computed from
        return self._row(
            f"discarded: {discard.verdict.words}",
            discard.worker,
            number=discard.number,
            computed_from=self._version - discard.staleness if known else None,
            staleness=discard.staleness if known else None,
            loss=came and came.loss,
        )

    def _other(self, record: journal.Noted | journal.Ended | journal.Resumed) -> Row:
        if isinstance(record, journal.Noted):
            self._told.add(record.text.partition(";")[0])
            return self._row(record.text, record.worker)
        self._version = record.version
        if isinstance(record, journal.Resumed):
            self._came.clear()
            return self._row(f"resumed from the checkpoint of version {record.version}", None)
        return self._row(f"ended, weights {record.weights_hash}", None)

    def _row(self, what: str, worker: int | None, **fields: Any) -> Row:
        time_s = self._now_s - (self._zero_s or 0.0)
        return Row(time_s=time_s, version=self._version, what=what, worker=worker, **fields)


def _in_words(event: events.WorkerEvent) -> str:
    if isinstance(event, Joined):
        return "joined" if event.incarnation <= 1 else f"joined again, incarnation {event.incarnation}"
    if isinstance(event, Left):
        return "died or was stopped" if event.died else "finished"
    if isinstance(event, events.Abandoned):
        where = f"at look {event.look}" if event.look else "when it was done"
        return f"dropped a step {where}, {event.batches} batches with it"
    if isinstance(event, events.Reported):
        return f"folded {event.versions} in place"
    return ""
