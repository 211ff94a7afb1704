"""How fast the workers of a lock-step run are, in samples a second, and the part of a global batch that each takes by that.

The server measures, from the last contribution of the round before until a worker's came. The journal has those moments, so a
replay cuts batches as they were cut: by the newest table of a round before, which all workers were told whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, nan
from statistics import fmean
from typing import Any

from plesio.attachments.attachment import Attachment, Half, Pushing
from plesio.core.events import Count

WORKERS_MAX = 64  # two tables are told with every answer, and an answer is small
KEPT = 0.7  # of a speed, when the next one is measured
Table = tuple[int, list[int]]
"""(version, the speed of each worker that computed from it, of the fastest's 10,000; 0: it is not there)"""


class Speeds(Attachment):
    """Of the workers of the last two rounds in which they shared batches."""

    name = "speeds"
    said = tuple[Count, Count]

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._rounds: list[tuple[int, dict[int, float]]] = []
        self._measured: dict[int, float] = {}
        self._began_s = self._heard_s = nan

    def told(self, worker: int, value: tuple[int, int]) -> None:
        """It took part in the round of this version, with so many samples; 0: its speed stays what it is."""
        version, samples = value
        newest = self._rounds[-1][0] if self._rounds else -1
        if version < newest:  # it was evicted, and does not know
            return
        if version > newest:
            self._rounds = [*self._rounds[-1:], (version, {})]
            self._began_s = self._heard_s
        self._heard_s, took_s = self.now_s, self.now_s - self._began_s
        if samples and took_s > 0.0 and worker in self._rounds[0][1]:
            speed = samples / took_s
            self._measured[worker] = KEPT * self._measured.get(worker, speed) + (1.0 - KEPT) * speed
        self._rounds[-1][1][worker] = self._measured.get(worker) or fmean(self._measured.values() or [1.0])

    def answer(self) -> list[Table] | None:
        return [(version, _by_worker(speeds)) for version, speeds in self._rounds] or None

    def kept(self) -> list[Any]:
        return [(version, list(speeds.items())) for version, speeds in self._rounds]

    def restore(self, kept: list[Any] | None) -> None:
        self._rounds = [(version, dict(speeds)) for version, speeds in kept or ()]
        self._measured = dict(self._rounds[-1][1]) if self._rounds else {}
        self._began_s = self._heard_s = nan


class Sharing(Half):
    """A worker's part of each batch."""

    heard = list[Table]
    _tables: Sequence[Table] = ()
    _said: tuple[int, int] | None = None

    def part(self, size: int, worker: int, workers: int, version: int, measured: bool) -> tuple[slice, float]:
        """Of a batch of `size` in the round of `version`, and how many times an even share it is."""
        speeds = next((speeds for of, speeds in reversed(self._tables) if of < version), [])
        if not any(speeds[worker : worker + 1]):  # nobody knows of it yet
            speeds = [1] * max(workers, worker + 1)
        own = cut(size, speeds)[worker]
        samples = own.stop - own.start
        self._said = version, samples if measured else 0
        return own, samples * sum(map(bool, speeds)) / size

    def take(self, pushing: Pushing) -> tuple[int, int] | None:
        said, self._said = self._said, None
        return said

    def hear(self, value: list[Table]) -> None:
        self._tables = value


def cut(size: int, speeds: Sequence[int]) -> list[slice]:
    """Parts as long as speeds say, one after the other; of at least one sample for whoever has a speed.

    >>> cut(100, [3, 0, 1])
    [slice(0, 75, None), slice(75, 75, None), slice(75, 100, None)]
    """
    parts, end = [], 0
    for place, speed in enumerate(speeds):
        begin, after = end, sum(map(bool, speeds[place + 1 :]))
        if speed:
            end = min(max(round(size * sum(speeds[: place + 1]) / sum(speeds)), begin + 1), size - after)
        parts.append(slice(begin, end))
    return parts


def _by_worker(speeds: dict[int, float]) -> list[int]:
    fastest = max(speeds.values())
    return [ceil(10_000 * speeds.get(one, 0.0) / fastest) for one in range(max(speeds) + 1)]
