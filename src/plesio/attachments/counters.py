"""Counters that all workers share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from plesio.attachments.attachment import Attachment, Half, Pushing
from plesio.core.events import Count
from plesio.errors import ConfigurationError

COUNTERS_MAX = 4
"""They are told with every answer, and an answer is small."""
Name = Annotated[str, msgspec.Meta(pattern="^[!-~]{1,16}$")]
Amounts = dict[str, int]


class Counters(Attachment):
    """What all have counted, of which each is told what the others did.

    >>> counters = Counters(workers=2)
    >>> counters.told(0, {"games": 3}); counters.answered(0)
    >>> counters.told(1, {"games": 4})
    >>> counters.answer(), counters.kept()
    ({'games': 7}, {'games': 3})
    """

    name = "counters"
    said = dict[Name, Count]

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._all: Amounts = {}
        self._coming: list[Amounts] = [{} for _ in range(workers)]  # with a contribution that is not answered

    def told(self, worker: int, value: Amounts) -> None:
        self._all = _sums(self._all, value)
        self._coming[worker] = value
        if len(self._all) > COUNTERS_MAX:
            raise ConfigurationError(
                f"the workers use {len(self._all)} counters ({', '.join(sorted(self._all))}): a run has {COUNTERS_MAX} at most"
            )

    def answered(self, worker: int) -> None:
        self._coming[worker] = {}

    again = answered

    def answer(self) -> Amounts | None:
        return self._all or None

    def kept(self) -> Amounts:
        settled = self._all
        for amounts in self._coming:
            settled = _sums(settled, {name: -amount for name, amount in amounts.items()})
        return settled

    def restore(self, kept: Amounts) -> None:
        self._all = dict(kept)
        self._coming = [{} for _ in range(self.workers)]


class Counting(Half):
    """A worker's counters: what all counted as of its last exchange, and what it `added` since."""

    heard = Amounts

    def __init__(self) -> None:
        self.all: Amounts = {}
        self.added: Amounts = {}

    def take(self, pushing: Pushing) -> Amounts | None:
        if not self.added:
            return None
        taken = {name: amount for name, amount in self.added.items() if amount}
        self.added.update(dict.fromkeys(taken, 0))
        self.all = _sums(self.all, taken)
        return taken or None

    def hear(self, value: Amounts) -> None:
        """An answer that crossed what this worker sent lacks that."""
        self.all |= {name: max(amount, self.all.get(name, 0)) for name, amount in value.items()}


def _sums(counters: Amounts, amounts: Amounts) -> Amounts:
    return counters | {name: counters.get(name, 0) + amount for name, amount in amounts.items()}
