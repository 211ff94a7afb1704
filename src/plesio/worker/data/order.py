"""The order of a loader's batches where several workers share them: the same on each, whichever batches it gets.

An epoch is drawn from (run seed, epoch). Where the loader or its sampler has a generator of its own, that decides: its state at
`prepare` is the first epoch's, and each epoch leaves it as torch would; one that is seeded anew before an epoch begins it so.
Batches are drawn as they are needed, and the latest are kept. One that comes back later is drawn again, from the epoch's start.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import msgspec
import torch
from torch.utils import data
from torch.utils.data import DataLoader, Subset

from plesio.errors import ConfigurationError
from plesio.worker.randomness.seeding import RandomState, seed_everything

AT_ONCE = 64  # so many batches are drawn at a time: the random sources are changed for it, and put back
KEPT_MAX = 1 << 20  # about so many indices of an epoch are kept
LENGTH_MAX = 1 << 20  # a sampler without a length that draws so many batches has no end
STARTS_MAX = 1000  # of so many epochs it is known how their generators began

Sources = list[torch.Generator]


def generators_of(*owners: Any) -> Sources:
    """The generators of loaders and samplers, each once."""
    ones = [getattr(one, "generator", None) for owner in owners for one in (owner, getattr(owner, "sampler", None))]
    return list({id(one): one for one in ones if isinstance(one, torch.Generator)}.values())


class BatchOrder:
    """The loader's own batches (or, without batching, samples) by epoch, the same on every worker."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self._sampler: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        sampler = self._sampler
        self._seed = seed
        self._settings, self._told = _settings_of(sampler), _length_of(sampler)
        self._of = type(loader.dataset).__name__
        self._subset = _digest(loader.dataset.indices) if isinstance(loader.dataset, Subset) else 0
        self._generators = generators_of(sampler)
        # the seed of the loader's processes comes from its generator, too, before each order
        self._seeds = loader.generator if any(loader.generator is one for one in self._generators) else None
        self._begins = self._states()
        self._starts = {0: self._begins}
        self._again = can_draw_again(sampler)
        self._in_turn = self._settings is None and bool(self._generators or not self._again)
        self._kept: dict[int, Any] = {}
        self._next = 0
        self.total = self._length()

    @property
    def plain(self) -> BatchOrder:
        """Batch by batch, as it is."""
        return self

    def begin(self, epoch: int) -> None:
        """A pass over the epoch begins."""

    def goes_on(self, epoch: int, start: bytes) -> None:
        """Another process began that pass, with its sources so, if it drew the order from them."""

    def skip(self, epoch: int) -> None:
        """A pass over the epoch has nothing to do: a resumed run has done it, or others took all."""

    def batch(self, epoch: int, number: int) -> Any:
        """Batch `number` of the epoch; None where it has fewer."""
        return self.batches(epoch)[number]

    def end(self) -> None:
        """The loop asks for more than the pass has."""

    def batches(self, epoch: int) -> Any:
        """Gives each of the epoch's batches by its number."""
        for one in range(min(self._next, epoch), epoch + 1) if self._in_turn else (epoch,):
            if one not in self._kept:
                self._draw(one)
        return self._kept[epoch]

    def digest(self, epoch: int) -> int:
        """A number that tells this epoch's order (and a `Subset`'s indices) from others; 0 if it has none."""
        # the usual samplers need not draw for it; another, with a source of its own, draws every epoch to stay in step
        if self._settings is not None:
            return _digest(self._settings, self._subset)
        return _digest(self.batches(epoch).first(), self._subset)

    def _length(self) -> int:
        try:
            return len(self._sampler)
        except (TypeError, NotImplementedError):
            batches = self.batches(0)
            batches.finish(LENGTH_MAX)
            if batches.drawn >= LENGTH_MAX:
                raise ConfigurationError(
                    f"{type(self._sampler).__name__} has no length, and drew {batches.drawn:,} batches without an end; give it "
                    "a __len__, and have each pass end (worker.steps counts steps without a loader)"
                ) from None
            return int(batches.drawn)

    def _states(self) -> list[torch.Tensor]:
        return [one.get_state() for one in self._generators]

    def refuse_length(self) -> NoReturn:
        """An epoch is not as long as the first: others share it out by that length."""
        raise ConfigurationError(
            f"{type(self._sampler).__name__} over a {self._of} no longer gives the {self.total} batches an epoch of its length "
            "at prepare, by which epochs are shared out. Where the data set changes, leave its loader out of prepare and loop "
            "over worker.share(loader), called anew for each epoch; else have __len__ return what comes"
        )

    def _draw(self, epoch: int) -> None:
        """Begin to draw an epoch, where need be with the one before it at its end."""
        if _length_of(self._sampler) != self._told:
            self.refuse_length()
        seed = self._seed + 1_000_003 * (epoch + 1)
        if self._settings is not None:
            batches: Any = _usual(*self._settings, seed)
        else:
            if self._in_turn and epoch == self._next and epoch:
                self._find_start(epoch)
            start = self._starts.get(epoch) or self._starts[min(self._starts)]
            batches = _Drawn(self._sampler, self._generators, partial(self._begin, seed, start), self._again)
        while len(self._kept) >= 2:
            del self._kept[min(self._kept)]
        self._kept[epoch] = batches
        self._next = max(self._next, epoch + 1)

    def _find_start(self, epoch: int) -> None:
        """The generators go on from the epoch before, or as the script has seeded them since."""
        left = self._kept[epoch - 1].finish()
        now = self._states()
        same = all(torch.equal(one, other) for one, other in zip(now, self._begins, strict=True))
        self._begins, self._starts[epoch] = now, left if same else now
        if len(self._starts) > STARTS_MAX:
            del self._starts[min(self._starts)]

    def _begin(self, seed: int, start: list[torch.Tensor]) -> None:
        """Bring the random sources to where an epoch begins."""
        seed_everything(seed)
        for generator, state in zip(self._generators, start, strict=True):
            generator.set_state(state)
        if self._seeds is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self._seeds)


class _Drawn:
    """What a sampler draws in an epoch, as it is needed. `begin` brings the random sources to where the epoch begins; they are
    put back each time. `again`: whether the sampler draws the same from there each time; all is kept of another."""

    def __init__(self, sampler: Any, generators: Sources, begin: Callable[[], None], again: bool) -> None:
        self._sampler = sampler
        self._generators = generators
        self._begin = begin
        self._again = again
        self._restart()

    def _restart(self) -> None:
        outside = RandomState(self._generators)
        self._begin()
        self._indices: Iterator[Any] = iter(self._sampler)
        self._inside = RandomState(self._generators)
        outside.restore()
        self._gone, self._kept = 0, list[Any]()

    @property
    def drawn(self) -> int:
        return self._gone + len(self._kept)

    def __getitem__(self, number: int) -> Any:
        if number < self._gone:
            self._restart()
        while number >= self.drawn:
            if not self._draw_on():
                raise ConfigurationError(
                    f"{type(self._sampler).__name__} drew {self.drawn} batches, and its length is above {number}: have "
                    "__len__ return what comes"
                )
        return self._kept[number - self._gone]

    def first(self) -> list[Any]:
        if not self.drawn:
            self._draw_on()
        return self._kept[:AT_ONCE]

    def finish(self, most: float = inf) -> list[torch.Tensor]:
        """Draw the rest, at most to `most` batches; the states in which that leaves the generators."""
        while self.drawn < most and self._draw_on():
            pass
        return self._inside.generators

    def _draw_on(self) -> bool:
        outside = RandomState(self._generators)
        self._inside.restore()
        more = list(islice(self._indices, AT_ONCE))
        self._inside = RandomState(self._generators)
        outside.restore()
        if self._again and len(self._kept) > max(AT_ONCE, KEPT_MAX // max(1, *map(size_of, more), 1)):
            self._gone += len(self._kept) // 2
            del self._kept[: len(self._kept) // 2]
        self._kept += more
        return bool(more)


def can_draw_again(sampler: Any) -> bool:
    """Whether all that it draws comes from the global sources and its generators: so it is of torch's own samplers."""
    ours = (data.BatchSampler, data.RandomSampler, data.SequentialSampler, data.SubsetRandomSampler)
    inner = getattr(sampler, "sampler", None)
    known = (*ours, data.WeightedRandomSampler)
    return type(sampler) in known and (inner is None or type(inner) in known or isinstance(inner, Sequence))


def size_of(indices: Any) -> int:
    """How many samples a batch of these indices has."""
    return len(indices) if isinstance(indices, Sized) else 1


def slice_of(indices: Any, part: int, parts: int) -> tuple[Any, int]:
    """The `part`-th of so many even slices of a batch, and how many samples it counts for. One that would be empty is a sample of
    its neighbour's, for each process of an island computes on something; it counts for none.

    >>> slice_of([7, 8, 9], 0, 2), slice_of([7, 8, 9], 1, 2)
    (([7], 1), ([8, 9], 2))
    >>> slice_of([7], 0, 2), slice_of([7], 1, 2)
    (([7], 0), ([7], 1))

    Raises:
        ConfigurationError: the loader gives single samples.
    """
    if not isinstance(indices, Sequence) or isinstance(indices, str):
        raise ConfigurationError(
            f"each of the {parts} processes of a worker takes a slice of every batch, and this loader gives single samples: "
            "give prepare a DataLoader with a batch_size"
        )
    count = len(indices)
    start, end = count * part // parts, count * (part + 1) // parts
    if start == end:
        at = min(start, count - 1)
        return indices[at : at + 1], 0
    return indices[start:end], end - start


def _settings_of(sampler: Any) -> tuple[int, int, bool, bool] | None:
    """What the order of the usual samplers depends on: the arguments of `_usual`; None for any other."""
    inner: Any = getattr(sampler, "sampler", None)
    shuffled = type(inner) is data.RandomSampler
    usual = type(inner) is data.SequentialSampler
    if shuffled:  # as DataLoader(shuffle=True) makes it: it draws each sample once, from torch's own source
        usual = not inner.replacement and inner.generator is None and len(inner) == len(inner.data_source)
    if type(sampler) is data.BatchSampler and usual:
        return len(inner), sampler.batch_size, sampler.drop_last, shuffled
    return (len(sampler), 0, False, False) if type(sampler) is data.SequentialSampler else None


def _length_of(sampler: Any) -> object:
    """What tells that an epoch is as long as another; None of a sampler without a length."""
    try:
        return len(sampler), _settings_of(sampler)
    except (TypeError, NotImplementedError):
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


def _usual(*key: Any) -> Sequence[Any]:
    """The batches of the usual samplers, drawn once for all workers of a process; without batching, the indices."""
    if not key[1]:
        return range(key[0])
    if (batches := _shared.get(key)) is None:
        batches = _shared[key] = _Slices(*key)
    return batches


def _digest(*parts: Any) -> int:
    """A number that tells lists of indices apart; 0 if an index is neither number nor text, nor a list or array of such."""
    try:
        return zlib.crc32(msgspec.msgpack.encode(parts, enc_hook=_as_list))
    except (AttributeError, TypeError, OverflowError):
        return 0


def _as_list(indices: Any) -> Any:
    return list(indices) if isinstance(indices, range) else indices.tolist()
