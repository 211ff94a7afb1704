"""What the workers logged, in bounded memory however long the run."""

from __future__ import annotations

from collections.abc import Iterator

from plesio.observe.summary import Logged

ENTRIES_MAX = 100_000
"""Of all workers of a run together."""


class Logbook:
    """Collects the means that workers send, each over a short span of time. Iterating gives them in the order of time.

    When there are more than `most`, two of a worker become one, and from then on twice as many of those that come do: all
    spans of a worker stay alike. The last of each worker, which may be made of fewer, is one more.

    >>> book = Logbook(most=2)
    >>> for second in range(5):
    ...     book.add(Logged(float(second), worker=0, steps=10, metrics={"loss": 5.0 - second}))
    >>> [(one.time_s, one.steps, one.metrics["loss"]) for one in book]
    [(1.0, 20, 4.5), (3.0, 20, 2.5), (4.0, 10, 1.0)]
    """

    def __init__(self, most: int = ENTRIES_MAX) -> None:
        self._most = most
        self._each = 1  # how many of those that come make one that is whole
        self._whole: list[Logged] = []
        # by worker: what is not whole yet, and of how many it is made
        self._under_way: dict[int, tuple[Logged, int]] = {}

    def add(self, entry: Logged) -> None:
        """Its worker's next."""
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
    """Both as one, of the later's time: means by steps (none counts as one), and what only one of them has as it is."""
    before, after = max(first.steps, 1), max(second.steps, 1)
    share = after / (before + after)
    metrics = {**first.metrics, **second.metrics}
    for name in first.metrics.keys() & second.metrics.keys():
        metrics[name] = (1 - share) * first.metrics[name] + share * second.metrics[name]
    return Logged(second.time_s, second.worker, first.steps + second.steps, metrics)
