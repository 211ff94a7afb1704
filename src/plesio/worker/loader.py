"""The user's data, shared out among the workers while they run.

Every worker draws the same list of batches for an epoch, from the run's seed and the epoch's number. The server leases their
numbers. A fast worker takes more, and a dead worker's batches go to others. A batch is done when the contribution it went
into is folded. Torch's own DataLoader makes the batches, here.

So every worker must be given the same data, all of it, and draw the same order. Torch's, NumPy's and Python's global sources
(and a sampler's torch.Generator) are seeded alike for that. A digest of what was drawn shows where workers drew different
orders all the same, by rank or from a source that nobody seeded. Different samples under equal numbers are not seen: data
that is split already must not be given to `prepare`.

An iteration that is left early gives back what it did not use. If no step followed, it was a look at the data: what it showed
goes back, too, and the next iteration is of the same epoch.

An iteration that begins without gradients (`torch.no_grad()`, `torch.inference_mode()`) trains nothing: it is a pass over all the
data, as for `update_bn` or the accuracy on the training set. Nothing is leased for it, and it counts nowhere.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import torch
from torch.utils import data
from torch.utils.data import DataLoader, IterableDataset, Subset

from plesio.errors import ConfigurationError
from plesio.protocol.worker import LeaseReply
from plesio.worker.data_use import DataUse
from plesio.worker.seeding import RandomState, seed_everything

LOST = -1
"""In place of the size of a batch that is being made, and was lost meanwhile."""
LEASE_MAX = 8
"""The most batches of one lease; less in a short epoch, so that its end is shared out evenly."""

Lease = Callable[[int, int, int, int, int], LeaseReply]
"""(epoch, total batches, most, unused, digest) -> the server's reply."""


class LeasedLoader:
    """Yields this worker's part of each epoch; iterate it once an epoch, as a DataLoader.

    Its length is an equal share of the epoch, rounded up; how many batches come depends on everybody's speed. Its other
    attributes (`dataset`, `batch_size`, `sampler`, ...) are the user's DataLoader's, for the data as a whole.
    """

    def __init__(
        self,
        loader: Any,
        lease: Lease,
        seed: int,
        workers: int,
        used: DataUse,
        reseed: Callable[[], None],
        begun: Callable[[], Callable[[], bool]],
        counts: bool = True,
    ) -> None:
        self._source = _as_loader(loader)
        self._order = _Order(self._source, seed)
        self._lease = lease
        self._counts = counts
        self.epochs = 0
        """How many the loop has begun, and been through but for the one that it is in."""
        self.within = False
        """Whether the loop is in an iteration."""
        self.read = 0
        """How many batches this process was given."""
        self._total = len(self._order.batches(0))
        if self._total == 0:
            raise ConfigurationError(
                "the loader is empty: no batch in an epoch; give it data, or a batch_size no larger than the data "
                "where drop_last=True"
            )
        self._most = max(1, min(LEASE_MAX, self._total // (8 * workers)))
        self._share = -(-self._total // workers)
        self._workers = workers
        self._granted: deque[tuple[int, int]] = deque()  # leased, and not made yet
        self._ahead: deque[int] = deque()  # sizes of those being made
        self._leased = 0  # with the last lease
        self._unused = self._losses = 0
        self.progress = 0.0
        """How far the run was through the data, in epochs, when this worker asked for its last lease."""
        self._given_out = 0.0
        """The same; 0 again where the server may not be the one that said so."""
        self.through: list[Callable[[], None]] = []
        """What is called when an iteration has ended."""
        self.begins: Callable[[], None] | None = None
        """What is called before the first batch, also of a seat that is another."""
        self._first = True
        self._used = used
        self._reseed = reseed
        self._begun = begun
        self.looped = False
        """Whether anybody looped over it."""
        self._shown = self._shown_samples = 0  # batches given out since the iteration began,
        self._trained: Callable[[], bool] = begun()  # and whether anything was made of them
        self._relay = _Relay(self._source) if self._source.num_workers or self._source.pin_memory else None

    def __len__(self) -> int:
        return self._share

    def __getattr__(self, name: str) -> Any:
        """Of the user's DataLoader."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._source, name)

    def __iter__(self) -> Iterator[Any]:
        """One epoch's worth of this worker's batches; without gradients all of an epoch, for no training."""
        self.looped = True
        return self._part() if torch.is_grad_enabled() else self._whole()

    def _whole(self) -> Iterator[Any]:
        indices = iter(self._order.batches(max(0, self.epochs - 1)))
        return iter(_Relay(self._source).over(indices)) if self._relay else map(partial(_fetch, self._source), indices)

    def _part(self) -> Iterator[Any]:
        self.leave()
        epoch = self.epochs
        self.epochs += 1
        indices = self._indices(epoch)
        batches = (_fetch(self._source, one) for one in indices) if self._relay is None else self._relay.over(indices)
        self.within = True
        try:
            for batch in batches:
                self._forget_lost()
                size = self._ahead.popleft()
                if size == LOST:
                    continue
                if not self._shown:
                    self._trained = self._begun()
                self._show(1, size if self._counts else 0)
                yield batch
        finally:
            self.within = False
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
        here = self._leased - len(self._granted) - len(self._ahead)  # and about as many on each of the others
        used = round(self.progress * self._total) + here * self._workers
        return max(0, min(used, self.epochs * self._total))

    def find_out(self) -> float:
        """Ask how far the run is; without any data."""
        self.progress = self._lease(0, self._total, 0, 0, 0).epoch
        return self.progress

    def leave(self) -> None:
        """Give back what the last iteration did not use: all of it, if it was only a look at the data."""
        self._forget_lost()
        self._unused += len(self._granted) + len(self._ahead) - self._ahead.count(LOST)
        self._granted.clear()
        self._ahead.clear()
        if self._shown and not self._trained():
            self._unused += self._shown
            self._show(-self._shown, -self._shown_samples)
            self.epochs -= 1
        self._shown = self._shown_samples = 0

    def _forget_lost(self) -> None:
        """What was leased before the worker lost its seat is others' now."""
        if self._losses != self._used.losses:
            self._losses = self._used.losses
            self._given_out = 0.0
            self._granted.clear()
            self._ahead = deque([LOST] * len(self._ahead))
            self._shown = self._shown_samples = self.read = 0
            self._first = True

    def _indices(self, epoch: int) -> Iterator[Any]:
        """What batches are to be made of: each as it is needed, or some ahead where the DataLoader has processes."""
        while self._more(epoch):
            of_epoch, number = self._granted.popleft()
            indices = self._order.batches(of_epoch)[number]
            self._ahead.append(_size(indices))
            yield indices

    def _more(self, epoch: int) -> bool:
        """Whether there is a batch to take; asks for more if none is left."""
        self._forget_lost()
        if not self._granted:
            digest = self._order.digest(epoch)
            if epoch + 1 <= self._given_out and not self._unused:
                return False  # others took all of it: to ask is in vain, and takes long for who is far away
            unused, self._unused = self._unused, 0
            asked_s = time.monotonic()
            reply = self._lease(epoch, self._total, self._most, unused, digest)
            self._used.waited_s += time.monotonic() - asked_s
            self._forget_lost()  # while it asked
            self._granted.extend(reply.batches)
            self.progress = self._given_out = reply.epoch
            self._leased = len(reply.batches)
            if reply.batches and self.begins is not None and self._first:
                self._first = False
                self.begins()
        if not self._used.batches:
            self._reseed()  # a resumed run may have drawn other random numbers since the last exchange
        return bool(self._granted)


class _Order:
    """The loader's own batches (or, without batching, samples) by epoch, the same on every worker."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._sampler: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._seed = seed
        self._settings = _settings_of(self._sampler)
        self._subset = _digest(loader.dataset.indices) if isinstance(loader.dataset, Subset) else 0
        self._digest = _digest(self._settings, self._subset) if self._settings else 0
        self._kept: dict[int, tuple[Sequence[Any], int]] = {}

    def batches(self, epoch: int) -> Sequence[Any]:
        return self._of(epoch)[0]

    def digest(self, epoch: int) -> int:
        """A number that tells this epoch's order (and a `Subset`'s indices) from others; 0 if it has none."""
        # the usual samplers need not draw for it; another, with a source of its own, draws every epoch to stay in step
        return self._digest or self._of(epoch)[1]

    def _of(self, epoch: int) -> tuple[Sequence[Any], int]:
        if epoch not in self._kept:
            while len(self._kept) >= 2:
                del self._kept[min(self._kept)]
            seed = self._seed + 1_000_003 * (epoch + 1)
            batches = _usual(*self._settings, seed) if self._settings else _drawn(self._sampler, seed)
            self._kept[epoch] = batches, self._digest or _digest(batches, self._subset)
        return self._kept[epoch]


class _Relay:
    """A DataLoader like the user's that takes its indices from leases."""

    def __init__(self, source: DataLoader[Any]) -> None:
        self._source: Iterator[Any] = iter(())
        kept = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"]
        if source.num_workers:
            kept += ["prefetch_factor", "persistent_workers", "multiprocessing_context"]
        settings: dict[str, Any] = {name: getattr(source, name) for name in kept}
        drawn_by = (
            {"batch_sampler": self} if source.batch_sampler is not None else {"batch_size": None, "sampler": self}
        )
        self._loader: DataLoader[Any] = DataLoader(source.dataset, **drawn_by, **settings)

    def __iter__(self) -> Iterator[Any]:
        """As the DataLoader's sampler."""
        return self._source

    def over(self, indices: Iterator[Any]) -> Iterator[Any]:
        self._source = indices
        return iter(self._loader)


def _fetch(loader: DataLoader[Any], indices: Any) -> Any:
    """The batch that a DataLoader without processes makes of `indices`."""
    dataset: Any = loader.dataset
    if loader.batch_sampler is None:
        return loader.collate_fn(dataset[indices])
    if hasattr(dataset, "__getitems__"):
        return loader.collate_fn(dataset.__getitems__(indices))
    return loader.collate_fn([dataset[index] for index in indices])


def _size(indices: Any) -> int:
    return len(indices) if isinstance(indices, Sized) else 1


def _as_loader(loader: Any) -> DataLoader[Any]:
    """A DataLoader as it is; any other sized dataset as one that yields single items."""
    if isinstance(loader, DataLoader):
        _check_shareable(loader)
        return loader
    items = loader.values() if isinstance(loader, dict) else loader if isinstance(loader, (list, tuple)) else ()
    if any(isinstance(one, DataLoader) for one in items):
        raise ConfigurationError(
            f"prepare was given a {type(loader).__name__} of DataLoaders; it shares out one: give it the one to train from, "
            "and iterate the others as they are"
        )
    if hasattr(loader, "__getitem__") and isinstance(loader, Sized):
        return DataLoader(loader, batch_size=None)  # type: ignore[arg-type]
    raise ConfigurationError(
        f"prepare was given {type(loader).__name__} for data; allowed: a torch DataLoader, or anything with a length "
        "and items"
    )


def is_stream(loader: Any) -> bool:
    """Whether this is a DataLoader over data without numbered samples."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def _check_shareable(loader: DataLoader[Any]) -> None:
    """Whether its samples can be shared out, all of them."""
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise ConfigurationError(
            f"{type(loader).__name__} has an __iter__ of its own, which plesio would not call; do what it does in collate_fn, "
            "in the dataset or in the training loop"
        )
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, data.DistributedSampler):
            raise ConfigurationError(
                f"the DataLoader's {type(sampler).__name__} leaves each worker a part of the data; prepare shares out "
                "the whole: leave the sampler out and say shuffle=True (for equal parts, run with data='shards')"
            )


def _settings_of(sampler: Any) -> tuple[int, int, bool, bool] | None:
    """What the order of the usual samplers depends on: the arguments of `_usual`; None for any other."""
    inner: Any = getattr(sampler, "sampler", None)
    shuffled = type(inner) is data.RandomSampler
    if shuffled:  # as DataLoader(shuffle=True) makes it: it draws each sample once, from torch's own source
        usual = not inner.replacement and inner.generator is None and len(inner) == len(inner.data_source)
    else:
        usual = type(inner) is data.SequentialSampler
    if type(sampler) is data.BatchSampler and usual:
        return len(inner), sampler.batch_size, sampler.drop_last, shuffled
    return None


class _Slices(Sequence[Any]):
    """The batches of the usual samplers, each cut when it is needed: lists of all would take long, and much memory."""

    def __init__(self, samples: int, batch_size: int, drop_last: bool, shuffled: bool, seed: int) -> None:
        self._order: Any = _shuffled(samples, seed) if shuffled else range(samples)
        self._starts = range(0, samples - samples % batch_size if drop_last else samples, batch_size)
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: Any) -> list[int]:
        start = self._starts[number]
        return list(self._order[start : start + self._batch_size])


def _shuffled(samples: int, seed: int) -> memoryview:
    """What a RandomSampler draws from torch's source under `seed`, in 8 bytes a sample."""
    drawn = torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(seed))
    order: Any = torch.randperm(samples, generator=torch.Generator().manual_seed(int(drawn))).numpy()
    return memoryview(order)


_shared: WeakValueDictionary[tuple[int, int, bool, bool, int], _Slices] = WeakValueDictionary()
"""The orders of the usual samplers that are in use in this process."""


def _usual(*key: Any) -> _Slices:
    """The batches of the usual samplers, drawn once for all workers of a process."""
    if (batches := _shared.get(key)) is None:
        batches = _shared[key] = _Slices(*key)
    return batches


def _drawn(sampler: Any, seed: int) -> Sequence[Any]:
    """What a sampler draws under `seed`; the random sources are put back."""
    outside = RandomState()
    seed_everything(seed)
    for one in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(one, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
    batches = list(sampler)
    outside.restore()
    return batches


def _digest(*parts: Any) -> int:
    """A number that tells lists of indices apart; 0 if an index is neither number nor text, nor a list or array of such."""
    try:
        return zlib.crc32(msgspec.msgpack.encode(parts, enc_hook=_as_list))
    except (AttributeError, TypeError, OverflowError):
        return 0


def _as_list(indices: Any) -> Any:
    return list(indices) if isinstance(indices, range) else indices.tolist()
