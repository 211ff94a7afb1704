"""The user's data, shared out among the workers while they run.

The server leases the numbers of an epoch's batches. A fast worker takes more, and a dead worker's batches go to others. A batch
is done when the contribution it went into is folded. Torch's own DataLoader makes the batches, here.

- A lone worker draws them as the script on its own does (`plesio.worker.data.own_order`). Each pass is drawn anew, and a loop
  that is left early leaves the rest of its epoch unused.
- Several workers draw one list of batches for an epoch, each by itself (`plesio.worker.data.order`). So each must be given the
  same data, all of it. A digest of what was drawn shows where workers drew different orders, by rank or from a source that nobody
  seeded. Different samples under equal numbers are not seen: data that is split already must not be given to `prepare`. What a
  loop that is left early did not use comes first in the next.

If no step followed an iteration that is left early, it was a look at the data: what it showed goes back, and the next iteration
is of the same epoch.

An iteration that begins without gradients (`torch.no_grad()`, `torch.inference_mode()`) trains nothing: it is a pass over all the
data, as for `update_bn` or the accuracy on the training set. Nothing is leased for it, and it counts nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import torch

from plesio.attachments.orders import Ordering
from plesio.errors import ConfigurationError, StopRun
from plesio.worker.data.asking import Asking, Lessor
from plesio.worker.data.grouped import GroupedOrder, StepBatches
from plesio.worker.data.making import BatchMaker, whole_pass
from plesio.worker.data.order import BatchOrder, size_of, slice_of
from plesio.worker.data.own_order import OwnOrder
from plesio.worker.data.source import SourceWrapper, as_loader
from plesio.worker.data.use import DataUse
from plesio.worker.state import LEAVES, WorkerState

LOST = -1  # in place of the size of a batch that is being made, and was lost meanwhile


@dataclass(eq=False, repr=False)
class LeasedLoader(SourceWrapper):
    """Yields this worker's part of each epoch; iterate it once an epoch, as a DataLoader.

    Its length is an equal share of the epoch, rounded up; how many batches come depends on everybody's speed. Its other
    attributes (`dataset`, `batch_size`, `sampler`, ...) are the user's DataLoader's, for the data as a whole. `begins` is called
    before the first batch, also of a seat that is another.
    """

    _theirs: Any
    _lessor: Lessor
    _state: WorkerState
    _workers: int
    _used: DataUse
    _begun: Callable[[], Callable[[], bool]]
    _begins: Callable[[], None]
    _counts: bool = True

    def __post_init__(self) -> None:
        self._source = source = as_loader(self._theirs)
        draws, seed = self._state.draws, self._state.seed
        self._lone = draws is not None
        as_in_script = self._lone and self._theirs is source
        self._maker = BatchMaker(source, as_in_script)
        plain = BatchOrder(source, seed) if draws is None else OwnOrder(source, draws, as_in_script)
        self._together = self._state.together
        self._order: BatchOrder | GroupedOrder = GroupedOrder(plain, self._together) if self._together > 1 else plain
        self.epochs = 0  # how many the loop has begun, and been through but for the one that it is in
        self.within = False  # whether the loop is in an iteration
        self.read = 0  # how many batches this process was given
        self.measured = False  # whether the script has asked for its length, which is a part
        self.empty_pass = False  # whether there was no batch for the last iteration
        self._total = self._order.total
        if self._total == 0:
            raise ConfigurationError(
                "the loader is empty: no batch in an epoch; give it data, or a batch_size no larger than the data "
                "where drop_last=True"
            )
        self._asking = Asking(self._lessor, self._total, self._workers, self._used)
        self._all_own = False  # the last lease is of this worker's own part, and nothing of the dead
        self._own = max(1, len(range(self._state.worker, self._total, self._workers)))  # batches an epoch
        self._granted: deque[tuple[int, int]] = deque()  # leased, and not made yet
        self._ahead: deque[int] = deque()  # sizes of those being made
        self._leased = 0  # with the last lease
        self._through = 0  # no batch of an epoch before this one is left, or comes back
        self._unused = self._losses = 0
        self._told = 0.0  # how far the run was through the data, in epochs, when this worker asked for its last lease
        self.through: list[Callable[[], None]] = []  # what is called when an iteration has ended
        self._first = True
        self._shown = self._shown_samples = 0  # batches given out since the iteration began,
        self._trained: Callable[[], bool] = self._begun()  # and whether anything was made of them
        self._open = False  # an iteration has begun and not come to its end

    def __len__(self) -> int:
        self.measured = True
        return self._length

    @property
    def _length(self) -> int:
        return ceil(self._total / self._workers)

    def __iter__(self) -> Iterator[Any]:
        """One epoch's worth of this worker's batches; without gradients all of an epoch, for no training."""
        self.looped = True
        if not torch.is_grad_enabled():
            return self._whole()
        return self._part() if self._lone else self._when_asked()

    def _when_asked(self) -> Iterator[Any]:
        """Nothing is leased for an iterator that nobody asks for a batch."""
        yield from self._part()

    def _whole(self) -> Iterator[Any]:
        if self._lone:
            return whole_pass(self._theirs, self._source)
        order = self._order.plain
        batches = order.batches(max(0, self.epochs - 1))
        return BatchMaker(self._source).over(batches[number] for number in range(order.total))

    def _part(self) -> Iterator[Any]:
        """As torch's iterators, a lone worker's draws what a pass begins with before it is asked for a batch."""
        self.leave()
        epoch = self.epochs
        self.epochs += 1
        self._open = True
        more = self._more(epoch)
        self.empty_pass = not more
        (self._order.begin if more else self._order.skip)(epoch)
        if more and self._state.draws is not None:
            self._state.attachments.of(Ordering).began = epoch, self._state.draws.start.packed
        indices = self._indices(epoch, more)
        return self._given(self._maker.over(indices) if self._counts else indices)  # a step's number is its own index

    def _given(self, batches: Iterator[Any]) -> Iterator[Any]:
        self.within = True
        self._pass = mine = object()
        try:
            for batch in batches:
                if self._state.parts_now:
                    raise StopRun(LEAVES)
                self._forget_lost()
                size = self._ahead.popleft()
                if size == LOST:
                    continue
                if not self._shown:
                    self._trained = self._begun()
                self._show(1, size if self._counts else 0)
                yield batch
                if self._pass is not mine:
                    raise ConfigurationError(
                        "two passes over the prepared loader at once: they would share one order; take worker.share(loader) of a "
                        "second loader for the other"
                    )
        finally:
            self.within = False
        self._open = False
        self._shown = self._shown_samples = 0
        for call in self.through:
            call()

    def _show(self, batches: int, samples: int) -> None:
        self.read += batches
        self._used.batches += batches
        self._used.samples += samples
        self._shown += batches
        self._shown_samples += samples

    @property
    def position(self) -> int:
        """How many batches the run has used up, as a script on its own would count them."""
        if self._lone:
            return self.read
        used = round(self._told * self._total) + self._here * self._workers  # about as many on each of the others
        return max(0, min(used * self._together, self.epochs * self._order.plain.total))

    @property
    def part(self) -> Fraction:
        """Of the batches of an epoch, as a script on its own would count them, how many its length says."""
        return Fraction(self._length, self._order.plain.total)

    @property
    def progress(self) -> float:
        """How far the run was through the data, in epochs, when this worker asked for its last lease. If each has its own part:
        how far it was through that when it took its last batch."""
        return self._told + (max(0, self._here - 1) / self._own if self._all_own else 0.0)

    @property
    def _here(self) -> int:
        """How many batches of the last lease are given out."""
        return self._leased - len(self._granted) - len(self._ahead)

    def find_out(self) -> float:
        """Ask how far the run is; without any data."""
        self._told, self._leased = self._asking.find_out(), 0
        return self._told

    def drawn(self) -> None:
        """All batches of the pass are given out, and the loop may not ask for more: a lone worker's sampler comes to its end."""
        self._order.end()

    def leave(self) -> None:
        """Give back what the last iteration did not use: all of it, if it was only a look at the data."""
        self._forget_lost()
        self._unused += len(self._granted) + len(self._ahead) - self._ahead.count(LOST)
        self._granted.clear()
        self._ahead.clear()
        (count, samples), self._used.read_ahead = self._used.read_ahead, (0, 0)
        if count and self._open:  # the loop was left before it got that one
            self._unused += count
            self._used.batches, self._used.samples = self._used.batches + count, self._used.samples + samples
            self._show(-count, -samples)
        if self._open and not (self._shown and self._trained()):
            self._unused += self._shown
            self._show(-self._shown, -self._shown_samples)
            self.epochs -= 1
        self._open = False
        self._shown = self._shown_samples = 0

    def _forget_lost(self) -> None:
        """What was leased before the worker lost its seat is others' now."""
        if self._losses != self._used.losses:
            self._losses = self._used.losses
            self._asking.forget()
            self._granted.clear()
            self._leased = 0
            self._ahead = deque([LOST] * len(self._ahead))
            self._shown = self._shown_samples = self.read = 0
            self._first, self._through = True, 0

    def _indices(self, epoch: int, more: bool) -> Iterator[Any]:
        """What batches are to be made of: each as it is needed, or some ahead where the DataLoader has processes."""
        while more:
            of_epoch, number = self._granted[0]
            if (indices := self._order.batch(of_epoch, number)) is None:
                return
            self._granted.popleft()
            part, parts = self._state.parts
            if isinstance(indices, StepBatches):
                indices, size = indices.part(part, parts)
                self._ahead.append(size)
            elif parts == 1 or not self._counts:
                self._ahead.append(size_of(indices))
            else:
                indices, size = slice_of(indices, part, parts)
                self._ahead.append(size)
            yield indices
            more = self._more(epoch)
        self._order.end()

    def _more(self, epoch: int) -> bool:
        """Whether there is a batch to take; asks for more if none is left, and some may be."""
        self._forget_lost()
        if not self._granted and (self._unused or epoch >= self._through):
            unused, self._unused = self._unused, 0
            reply = self._asking.more(epoch, unused, self._order.digest(epoch))
            self._forget_lost()  # while it asked
            self._granted.extend(reply.batches)
            self._told, self._through = reply.epoch, reply.through
            if reply.drawn is not None:
                self._order.plain.goes_on(*reply.drawn)
            self._leased = len(reply.batches)
            self._all_own = self._lessor.in_parts and all(
                number % self._workers == self._state.worker for _, number in reply.batches
            )
            if reply.batches and self._first:
                self._first = False
                self._begins()
        if self._lessor.away and self._granted:
            self._asking.ahead(epoch, len(self._granted))
        if self._state.begins(self._used.batches):
            self._state.reseed()  # a resumed run may have drawn other random numbers since the last exchange
        return bool(self._granted)
