"""What the workers logged, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from plesio.observe.summary import Logged

ENTRIES_MAX = 100_000  # limit for all workers of a run together
LAST_MAX, LAST_SHARE = 8, 10
"""A worker's last steps are those of one in `LAST_SHARE` of its entries, one at least and at most `LAST_MAX`."""


class LastLogged(NamedTuple):
    """The mean of a logged number over all workers' last steps, and how many steps these are."""

    mean: float
    steps: int


class LastSteps:
    """What workers logged last: the one figure of tables, reports, sinks and the live page.

    A single entry is often one step of one worker. So each worker's last few count, weighted by their steps. A worker that
    logged nothing in the later half of the run is not counted.

    >>> last = LastSteps([Logged(1.0, worker, 10, {"loss": float(worker)}) for worker in range(2)])
    >>> last.of("loss"), last.of("accuracy")
    (LastLogged(mean=0.5, steps=20), None)
    """

    def __init__(self, entries: Iterable[Logged] = ()) -> None:
        self._last: dict[str, dict[int, deque[Logged]]] = {}  # by name and worker
        self._count: dict[tuple[str, int], int] = {}
        for one in entries:
            self.add(one)

    def add(self, entry: Logged) -> None:
        for name in entry.metrics:
            own = self._last.setdefault(name, {}).setdefault(entry.worker, deque(maxlen=LAST_MAX))
            if not entry.steps:  # no mean over steps, but how something stands now, as what a run spent
                own.clear()
            own.append(entry)
            count = self._count[name, entry.worker] = self._count.get((name, entry.worker), 0) + 1
            while len(own) > 1 + count // LAST_SHARE:
                own.popleft()

    def of(self, name: str) -> LastLogged | None:
        each = self._last.get(name, {}).values()
        half_s = max((own[-1].time_s for own in each), default=0.0) / 2
        last = [(max(one.steps, 1), one.metrics[name]) for own in each if own[-1].time_s >= half_s for one in own]
        steps = sum(count for count, _ in last)
        return LastLogged(sum(count * value for count, value in last) / steps, steps) if last else None

    def means(self) -> dict[str, float]:
        """Of each name."""
        return {name: found.mean for name in self._last if (found := self.of(name)) is not None}


class Logbook:
    """Collects the means that workers send, each over a short span of time. Iterates in order of time.

    Beyond `most` entries, each two of a worker are merged, and so are later ones: all spans of a worker stay equally
    long. The last entry of each worker may be shorter, and is kept in addition.

    >>> book = Logbook(most=2)
    >>> for second in range(5):
    ...     book.add(Logged(float(second), worker=0, steps=10, metrics={"loss": 5.0 - second}))
    >>> [(one.time_s, one.steps, one.metrics["loss"]) for one in book]
    [(1.0, 20, 4.5), (3.0, 20, 2.5), (4.0, 10, 1.0)]
    """

    def __init__(self, most: int = ENTRIES_MAX) -> None:
        self._most = most
        self._each = 1  # received entries merged into one
        self._whole: list[Logged] = []
        # by worker: the entry still being merged, and of how many
        self._under_way: dict[int, tuple[Logged, int]] = {}
        self.last = LastSteps()

    def add(self, entry: Logged) -> None:
        """Add the next entry of its worker."""
        self.last.add(entry)
        self._take(entry, 1)
        if len(self._whole) > self._most:
            self._halve()

    def __iter__(self) -> Iterator[Logged]:
        under_way = [entry for entry, _ in self._under_way.values()]
        return iter(sorted((*self._whole, *under_way), key=lambda entry: entry.time_s))

    def _take(self, entry: Logged, made_of: int) -> None:
        before, number = self._under_way.pop(entry.worker, (None, 0))
        merged = entry if before is None else _merged(before, entry)
        if number + made_of < self._each:
            self._under_way[entry.worker] = merged, number + made_of
        else:
            self._whole.append(merged)

    def _halve(self) -> None:
        whole, under_way, made_of = self._whole, self._under_way, self._each
        self._whole, self._under_way, self._each = [], {}, 2 * made_of
        for entry in whole:
            self._take(entry, made_of)
        for entry, number in under_way.values():
            self._take(entry, number)


def _merged(first: Logged, second: Logged) -> Logged:
    """Both as one, at the later time: means weighted by steps (at least 1); a metric of only one is unchanged."""
    before, after = max(first.steps, 1), max(second.steps, 1)
    share = after / (before + after)
    metrics = {**first.metrics, **second.metrics}
    for name in first.metrics.keys() & second.metrics.keys():
        metrics[name] = (1 - share) * first.metrics[name] + share * second.metrics[name]
    return Logged(second.time_s, second.worker, first.steps + second.steps, metrics)
