"""Who works on which part of the data: the state machine of its batches.

Theory. An epoch is a set of batches, each in one of four states. Every batch of an epoch ends as done or skipped
exactly once; what a dead or late worker held goes back and is given to somebody else, in its own epoch if anybody still
asks for it, otherwise in the next one.

| state       | leased (take)  | its contribution folded | discarded as late, or worker died | discarded as not finite |
| ----------- | -------------- | ----------------------- | --------------------------------- | ----------------------- |
| waiting     | outstanding    | -                       | -                                 | -                       |
| outstanding | -              | done (counted)          | waiting (in front)                | skipped (counted)       |

At first batch b waits in the queue of worker b mod N. With `stealing` a worker whose queue is empty takes from the
longest queue: fast workers then take more. Without it (lock step, or the user asked for shards) who gets what depends
on nothing but N, what was given back included. A dead worker's part is open to all either way; without stealing no lease
has more of it than an equal share. When N changes, all that waits goes back, and b mod the new N says whose it is. What
waits is kept as ranges: an epoch may have any number of batches.

When an epoch was opened is kept as long as somebody may be given a batch of it: in seconds since the first one was. A resumed run
goes on from when the last one was.

A lone worker asks for an epoch when its loop begins a pass. What waits of earlier ones stays unused then, as in a script alone.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from math import gcd
from typing import Self

import msgspec

IN_VAIN_MAX = 50_000
"""Epochs that a worker may ask for though none has a batch for it: more than a loop that ends will have."""

Batch = tuple[int, int]
"""(epoch, batch number)"""
Piece = tuple[int, range]
"""(epoch, batch numbers)"""


class LeasesState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps. A queue is known by its length: it is the end of all its worker was ever to get. What was returned
    is (epoch, batch), or (epoch, start, stop, step) of a range."""

    workers: int
    total: int | None
    epochs: int
    done: int
    skipped: int
    gone: tuple[int, ...]
    waiting: tuple[int, ...]
    returned: tuple[tuple[int, ...], ...]
    begun_s: tuple[tuple[int, float], ...] = ()
    choices: tuple[tuple[int, tuple[int, ...]], ...] = ()


class DataLeases:
    """Leases of batches to workers. `lone`: there is and will be one worker only.

    >>> leases = DataLeases(workers=2, stealing=True)
    >>> leases.take(0, epoch=0, total=3, most=2)
    ((0, 0), (0, 2))
    >>> leases.take(0, epoch=0, total=3, most=2)
    ((0, 1),)
    >>> leases.folded(leases.consume(0, 2)); leases.done
    2
    """

    def __init__(self, workers: int, stealing: bool, lone: bool = False) -> None:
        self.workers = workers
        self.lone = lone
        self.stealing = stealing
        self.done = 0
        self.skipped = 0
        self.opened = 0
        self._total: int | None = None
        self._resumed = False  # whether that number is the resumed run's
        self.may_change = False  # whether the first to ask may say another, as of clients a round
        self._drawn: dict[int, tuple[int, int]] = {}  # by epoch: the first worker that asked, and its digest
        self._epochs = 0  # epochs opened so far
        self._undone: dict[int, int] = {}  # by epoch: its batches that are neither done nor skipped, if there are any
        self._begun_s: dict[int, float] = {}  # by epoch, of those and of the last one
        self._zero_s: float | None = None  # the time from which that is counted
        self._gone: set[int] = set()
        self._returned: list[Piece] = []  # by their first batches
        self._queues = defaultdict(deque, {worker: deque[Piece]() for worker in range(workers)})
        self._queued = 0  # in all of them
        self._outstanding: defaultdict[int, deque[Batch]] = defaultdict(deque)
        self.choices: list[tuple[int, tuple[int, ...]]] = []
        """(epoch, items): these may be drawn from that epoch on; none: all."""

    @property
    def per_epoch(self) -> int | None:
        """How many batches an epoch has; None before anybody asked for one."""
        return self._total

    def choose(self, items: tuple[int, ...] | None) -> None:
        """These may be drawn (empty: all; None: those of before) from the first epoch on of which nothing is given out.

        >>> leases = DataLeases(workers=1, stealing=True)
        >>> _ = leases.take(0, epoch=0, total=2, most=2)
        >>> leases.choose((5, 6, 7)); leases.choices
        [(1, (5, 6, 7))]
        """
        if items is not None and items != (self.choices[-1][1] if self.choices else ()):
            self.choices.append((self._epochs, items))

    @property
    def unvisited(self) -> int:
        """Batches of opened epochs that are neither done nor skipped."""
        return self.opened - self.done - self.skipped

    @property
    def epochs_done(self) -> float:
        """How many passes over the data are folded: 2.5 in the middle of the third."""
        return self.done / self._total if self._total else 0.0

    def progress(self, worker: int) -> float:
        """How far the data is given out, in epochs: to all with `stealing`; else to `worker`, of its own part."""
        if not self._total:
            return 0.0
        if self.stealing:
            return (self.opened - self._queued - _count(self._returned)) / self._total
        own = len(range(worker, self._total, self.workers))
        back = sum(self._owned(worker, numbers) for _, numbers in self._returned)
        return self._epochs - (_count(self._queues[worker]) + back) / max(1, own)

    @property
    def through(self) -> int:
        """Of the epochs before this one every batch is done or skipped: none comes back."""
        return next(iter(self._undone), self._epochs)

    def begun_s(self, batches: Sequence[Batch]) -> float:
        """When the epoch of the first of these was opened."""
        return self._begun_s.get(batches[0][0], 0.0) if batches else 0.0

    def agree(self, total: int) -> int:
        if self.may_change and self._total not in (None, total):
            self._draw_anew(total)
        self.may_change = False
        self._total = self._total or total
        return self._total

    def _draw_anew(self, total: int) -> None:
        """An epoch has so many batches from now on. Those that were begun have no more. The last ones of which nothing is done
        are opened again."""
        while self._epochs and self._undone.get(self._epochs - 1) == self._total:
            self._epochs -= 1
        self._returned, self._queued = [], 0
        self._undone.clear()
        for queue in self._queues.values():
            queue.clear()
        self._total, self.opened, self.skipped = total, self._epochs * total, 0
        self.done = self.opened

    def disagreement(self, worker: int, epoch: int, total: int, digest: int) -> str:
        """What is wrong with a request for data: it is not the others', or asks for ever in vain. Empty if nothing is.

        >>> leases = DataLeases(workers=2, stealing=True)
        >>> leases.disagreement(0, epoch=0, total=3, digest=17)
        ''
        >>> leases.disagreement(1, epoch=0, total=4, digest=17)
        "worker 1: its loader has 4 batches an epoch, another worker's 3; give all the same data"
        >>> resumed = DataLeases.restore(leases.state(()), workers=2, stealing=True)
        >>> resumed.disagreement(0, epoch=0, total=4, digest=17)
        "worker 0: its loader has 4 batches an epoch, the resumed run's 3; give all the same data, or say data='new'"
        """
        agreed = self.agree(total)
        if total != agreed:
            whose, new = ("the resumed run's", ", or say data='new'") if self._resumed else ("another worker's", "")
            they = f"{total} batches an epoch, {whose} {agreed}"
            return f"worker {worker}: its loader has {they}; give all the same data{new}"
        if epoch >= IN_VAIN_MAX and not self.stealing and worker >= total and not self._gone:
            return (
                f"worker {worker} got no batch in {epoch:,} epochs: one has {total}, shared out in equal parts (as in lock step "
                f"and with data='shards') among {self.workers} workers. Its loop seems to have no end, and in lock step the "
                f"others wait for it: have at least {self.workers} batches an epoch (a smaller batch_size) or "
                f"workers={total} at most, or let the loop end after some epochs"
            )
        first, drawn = self._drawn.setdefault(epoch, (worker, digest)) if digest else (worker, 0)
        if digest == drawn:
            return ""
        return (
            f"workers {first} and {worker} drew different batches for epoch {epoch}: some samples would come twice, others "
            "never; give all the same data, and a sampler that draws from torch's, NumPy's or Python's global source "
            "(plesio seeds them), from its generator=torch.Generator(), or from a source seeded with worker.seed; data "
            "that is split already is not for prepare (give it None)"
        )

    def take(self, worker: int, epoch: int, total: int, most: int, now_s: float = 0.0) -> tuple[Batch, ...]:
        """Up to `most` batches for `worker`, none of a later epoch than `epoch`."""
        total = self.agree(total)
        while self._epochs <= epoch:
            self._open(self._epochs, total, now_s)
        if self.lone:
            self._forget_before(epoch)
        got: list[Batch] = []
        others = most if self.stealing else -(-_count(self._returned) // max(1, self.workers - len(self._gone)))
        while len(got) < most and (batch := self._next(worker, epoch, others > 0)) is not None:
            got.append(batch)
            others -= batch[1] % self.workers != worker
        self._outstanding[worker].extend(got)
        return tuple(got)

    def _open(self, epoch: int, total: int, now_s: float) -> None:
        if self._zero_s is None:
            self._zero_s = now_s - max(self._begun_s.values(), default=0.0)
        self._begun_s = {one: begun for one, begun in self._begun_s.items() if one in self._undone}
        self._begun_s[epoch] = now_s - self._zero_s
        for worker in range(min(self.workers, total)):
            self._queues[worker].append((epoch, range(worker, total, self.workers)))
        self._queued += total
        self.opened += total
        self._undone[epoch] = total
        self._epochs += 1
        for worker in self._gone:
            self._open_to_all(worker)

    def _forget_before(self, epoch: int) -> None:
        while self._returned and self._returned[0][0] < epoch:
            of_epoch, numbers = self._returned.pop(0)
            self._ended(of_epoch, len(numbers))
        for queue in self._queues.values():
            while queue and queue[0][0] < epoch:
                of_epoch, numbers = queue.popleft()
                self._queued -= len(numbers)
                self._ended(of_epoch, len(numbers))

    def _next(self, worker: int, epoch: int, others: bool) -> Batch | None:
        queue = self._queues[worker]
        first = min(epoch, queue[0][0]) if queue else epoch  # what was given back of a later epoch waits
        returned = self._returned_to(worker, first, others) if self._returned else None
        if returned is not None:
            return returned
        if self.stealing and self._queued and not (queue and queue[0][0] <= epoch):
            queue = max(self._queues.values(), key=lambda one: _count(one) if one and one[0][0] <= epoch else 0)
        if not queue or queue[0][0] > epoch:
            return None
        self._queued -= 1
        of_epoch, numbers = queue.popleft()
        if len(numbers) > 1:
            queue.appendleft((of_epoch, numbers[1:]))
        return of_epoch, numbers[0]

    def _returned_to(self, worker: int, epoch: int, others: bool) -> Batch | None:
        """The first that was given back; without stealing, of its own or, with `others`, of one that is gone."""
        best: tuple[Batch, int, int] | None = None  # which, in which piece, and where in that
        for place, (of_epoch, numbers) in enumerate(self._returned):
            if of_epoch > epoch or (best is not None and (of_epoch, numbers[0]) > best[0]):
                break
            at = 0 if self.stealing else self._first_for(worker, numbers, others)
            if at is not None and (best is None or (of_epoch, numbers[at]) < best[0]):
                best = (of_epoch, numbers[at]), place, at
        if best is None:
            return None
        batch, place, at = best
        of_epoch, numbers = self._returned.pop(place)
        self._put_back((of_epoch, rest) for rest in (numbers[:at], numbers[at + 1 :]))
        return batch

    def _first_for(self, worker: int, numbers: range, others: bool) -> int | None:
        """Where in `numbers` the first is that `worker` may have: its own, or with `others` of one that is gone."""
        owners = (one % self.workers for one in numbers[: self._period(numbers)])
        return next((at for at, one in enumerate(owners) if one == worker or (others and one in self._gone)), None)

    def _owned(self, worker: int, numbers: range) -> int:
        """How many of `numbers` are this worker's own."""
        period = self._period(numbers)
        first = (at for at, one in enumerate(numbers[:period]) if one % self.workers == worker)
        return sum(len(numbers[at::period]) for at in first)

    def _period(self, numbers: range) -> int:
        """After how many of `numbers` the same owners come again."""
        return self.workers // gcd(self.workers, numbers.step)

    def holds(self, worker: int) -> bool:
        """Whether `worker` has batches that are in no contribution yet."""
        return bool(self._outstanding[worker])

    def consume(self, worker: int, count: int) -> tuple[Batch, ...]:
        """The `count` oldest batches `worker` holds: they are now in its contribution."""
        held = self._outstanding[worker]
        return tuple([held.popleft() for _ in range(min(count, len(held)))]) if held else ()

    def unused(self, worker: int, count: int) -> None:
        """`worker` returns the `count` newest batches it holds; others get them."""
        held = self._outstanding[worker]
        self.give_back(tuple(held.pop() for _ in range(min(count, len(held)))))

    def folded(self, batches: tuple[Batch, ...]) -> None:
        self.done += len(batches)
        self._conclude(batches)

    def skip(self, batches: tuple[Batch, ...]) -> None:
        """These batches made a contribution that was not finite: once more would not help."""
        self.skipped += len(batches)
        self._conclude(batches)

    def _conclude(self, batches: tuple[Batch, ...]) -> None:
        for epoch, _ in batches:
            self._ended(epoch, 1)

    def _ended(self, epoch: int, count: int) -> None:
        """So many of this epoch's batches do not come back."""
        self._undone[epoch] -= count
        if not self._undone[epoch]:
            del self._undone[epoch]

    def give_back(self, batches: tuple[Batch, ...]) -> None:
        """These batches were not folded; they are leased again, the earliest first."""
        self._put_back((epoch, range(batch, batch + 1)) for epoch, batch in batches)

    def _put_back(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece[1]:
                insort(self._returned, piece, key=_place)

    def share_out(self, workers: int) -> None:
        """Share out what waits, and later epochs, among so many workers. Who is new has its part once it has joined.

        >>> leases = DataLeases(workers=1, stealing=False)
        >>> first = leases.take(0, epoch=0, total=6, most=2)
        >>> leases.share_out(2)
        >>> leases.joined(1)
        >>> first, leases.take(0, epoch=0, total=6, most=6), leases.take(1, epoch=0, total=6, most=6)
        (((0, 0), (0, 1)), ((0, 2), (0, 4)), ((0, 3), (0, 5)))
        """
        for worker in range(self.workers):
            self._open_to_all(worker)
        self._gone = {one for one in self._gone if one < workers} | set(range(self.workers, workers))
        self.workers = workers

    def left(self, worker: int) -> None:
        if worker < self.workers:
            self._gone.add(worker)
        self.give_back(self.consume(worker, len(self._outstanding[worker])))
        self._open_to_all(worker)

    def joined(self, worker: int) -> None:
        """This worker is here (again): batches of later epochs wait for it."""
        self._gone.discard(worker)

    def state(self, unfolded: Iterable[Batch]) -> LeasesState:
        """The state for a checkpoint; leased and `unfolded` batches return to the queue in it."""
        leased = [batch for held in self._outstanding.values() for batch in held]
        waiting = tuple([_count(self._queues[worker]) for worker in range(self.workers)])
        gone = tuple(sorted(self._gone))
        back = tuple(sorted((*map(_saved, self._returned), *leased, *unfolded)))
        begun, chosen = tuple(self._begun_s.items()), tuple(self.choices)
        kept = self._total, self._epochs, self.done, self.skipped, gone, waiting, back
        return LeasesState(self.workers, *kept, begun_s=begun, choices=chosen)

    @classmethod
    def restore(cls, state: LeasesState, workers: int, stealing: bool) -> Self:
        """Leases as they were when that state was taken; shared out anew if there are more or fewer workers now."""
        leases = cls(workers, stealing)
        leases.done, leases.skipped = state.done, state.skipped
        leases._total, leases._epochs = state.total, state.epochs
        leases._begun_s = dict(state.begun_s)
        leases.choices = list(state.choices)
        if state.total is not None:
            leases._resumed = True
        leases.opened = state.epochs * (state.total or 0)
        returned = list(map(_read, state.returned))
        queues = [_last(worker, length, state) for worker, length in enumerate(state.waiting)]
        for epoch, numbers in sorted(sum(queues, returned), key=_place):
            leases._undone[epoch] = leases._undone.get(epoch, 0) + len(numbers)
        leases._put_back(returned)
        for worker, (queue, length) in enumerate(zip(queues, state.waiting, strict=True)):
            if workers == state.workers:
                leases._queues[worker].extend(queue)
                leases._queued += length
            else:
                leases._put_back(queue)
        leases._gone.update(worker for worker in state.gone if worker < workers)
        return leases

    def _open_to_all(self, worker: int) -> None:
        queue = self._queues[worker]
        self._queued -= _count(queue)
        self._put_back(queue)
        queue.clear()


def _place(piece: Piece) -> Batch:
    return piece[0], piece[1][0]


def _count(pieces: Iterable[Piece]) -> int:
    return sum([len(numbers) for _, numbers in pieces])


def _saved(piece: Piece) -> tuple[int, ...]:
    epoch, numbers = piece
    return (epoch, numbers[0]) if len(numbers) == 1 else (epoch, numbers.start, numbers.stop, numbers.step)


def _read(saved: tuple[int, ...]) -> Piece:
    epoch, start, *rest = saved
    return epoch, range(start, *rest) if rest else range(start, start + 1)


def _last(worker: int, length: int, state: LeasesState) -> list[Piece]:
    """The last `length` of the batches that waited for `worker`, over all epochs that were opened."""
    own = range(worker, state.total or 0, state.workers)
    if not length:
        return []
    whole, rest = divmod(length, len(own))
    first = state.epochs - whole
    begun = [(first - 1, own[-rest:])] if rest else []
    return begun + [(epoch, own) for epoch in range(first, state.epochs)]
