"""The order of a lone worker's batches: torch's own, drawn from the script's sources as the loop goes on."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from plesio.worker.data.order import BatchOrder, can_draw_again, generators_of
from plesio.worker.randomness.draws import OwnDraws
from plesio.worker.randomness.seeding import RandomState


class OwnOrder(BatchOrder):
    """Each pass draws anew, as a DataLoader does: first the seed of its processes (if the user gave a DataLoader: `seeds`), then
    indices, as they are needed."""

    def __init__(self, source: DataLoader[Any], draws: OwnDraws, seeds: bool) -> None:
        super().__init__(source, 0)
        self._source, self._draws, self._draws_seed = source, draws, seeds
        draws.generators = generators_of(source, source.batch_sampler)
        self._indices: Iterator[Any] = iter(())
        self._number = 0
        self._is_anothers = False  # the pass under way began in a process that ended

    def goes_on(self, epoch: int, start: bytes) -> None:
        self._draws.goes_on(epoch, start)

    def begin(self, epoch: int) -> None:
        """A pass begins; the DataLoader that makes its batches draws the seed."""
        known = self._draws.knows(epoch) and can_draw_again(self._sampler)  # it may have a source of its own
        self._is_anothers = self._draws.is_new and not known
        self._draws.begin(epoch)
        self._indices, self._number = iter(self._sampler), 0

    def skip(self, epoch: int) -> None:
        """A sampler with a source of its own draws it all the same, to stay in step."""
        if not can_draw_again(self._sampler):
            outside = RandomState(self._draws.generators)
            deque(self._sampler, maxlen=0)
            outside.restore()

    def digest(self, epoch: int) -> int:
        return 0

    def batch(self, epoch: int, number: int) -> Any:
        """One that comes back is drawn again, from where the pass began."""
        outside = RandomState() if number < self._number else None
        if outside is not None:
            self._draws.rewind()
            self._indices, self._number = iter(self._sampler), 0
            if self._draws_seed:
                torch.empty((), dtype=torch.int64).random_(generator=self._source.generator)
        if self._is_anothers and number > 0:
            self._say_that_it_is_anothers(epoch)
        self._is_anothers = False
        deque(islice(self._indices, number - self._number), maxlen=0)
        self._draws.caught_up()
        found, self._number = next(self._indices, None), number + 1
        if outside is not None:
            outside.restore()
        return found

    def _say_that_it_is_anothers(self, epoch: int) -> None:
        """Without a random order it is the same, which nobody can see."""
        warnings.warn(
            f"this process goes on in the middle of pass {epoch} for one that ended, and may draw another order than that did: "
            "if the data are shuffled by a source that it does not know, some samples come twice in this pass, and others not at "
            "all; with workers_max=2 the order is the run's, whoever draws it",
            RuntimeWarning,
            stacklevel=2,
        )

    def end(self) -> None:
        """A sampler may draw once more then."""
        if self._number == self.total and next(self._indices, None) is not None:
            self.refuse_length()
