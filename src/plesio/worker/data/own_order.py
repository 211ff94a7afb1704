"""The order of a lone worker's batches: torch's own, drawn from the script's sources as the loop goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from plesio.errors import ConfigurationError
from plesio.worker.data.order import Order, can_draw_again, generators_of, index_sampler
from plesio.worker.randomness.draws import OwnDraws
from plesio.worker.randomness.seeding import RandomState

END = object()


class OwnOrder:
    """Each pass draws anew, as a DataLoader does: first the seed of its processes, then indices, as they are needed.

    Args:
        source: the loader.
        draws: the sources.
        seeds: whether the pass draws that seed: the user gave a DataLoader. `relays`: another DataLoader draws it.
    """

    def __init__(self, source: DataLoader[Any], draws: OwnDraws, seeds: bool, relays: bool) -> None:
        self._generator = source.generator
        self._sampler: Any = index_sampler(source)
        self._draws = draws
        self._seeds, self._relays = seeds, relays
        draws.generators = generators_of(source, source.batch_sampler)
        self.total = Order(source, 0).total
        self._indices: Iterator[Any] = iter(())
        self._next = 0

    def begin(self, epoch: int) -> None:
        """A pass begins."""
        self._draws.begin(epoch)
        self._begin(self._seeds and not self._relays)

    def skip(self, epoch: int) -> None:
        """A resumed run has done this epoch: a sampler with a source of its own draws it all the same, to stay in step."""
        if not can_draw_again(self._sampler):
            outside = RandomState(self._draws.generators)
            deque(self._sampler, maxlen=0)
            outside.restore()

    def _begin(self, seeds: bool) -> None:
        self._indices, self._next = iter(self._sampler), 0
        if seeds:
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)

    def batch(self, number: int) -> Any:
        """Batch `number` of the pass, or END. One that comes back is drawn again, from where the pass began."""
        outside = RandomState() if number < self._next else None
        if outside is not None:
            self._draws.rewind()
            self._begin(self._seeds)
        deque(islice(self._indices, number - self._next), maxlen=0)
        self._draws.caught_up()
        found, self._next = next(self._indices, END), number + 1
        if outside is not None:
            outside.restore()
        return found

    def end(self) -> None:
        """The loop asks for more than the pass has: a sampler may draw once more then."""
        if self._next == self.total and next(self._indices, END) is not END:
            raise ConfigurationError(
                f"{type(self._sampler).__name__} drew more than the {self.total} batches of its length: have __len__ return "
                "what comes"
            )
