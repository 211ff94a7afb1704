"""`ps.Queue`: experience between processes of one host, from actors that put to learners that get."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from plesio.errors import ConfigurationError, DeadlineError, unknown_name
from plesio.experience.slots import Items, Layout, Slots
from plesio.system.memory import SharedBlock, TablePlace
from plesio.system.process_lock import ProcessLock

T = TypeVar("T")
OVERFLOWS = "wait", "drop_oldest", "drop_newest"
WAIT_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5e-5, 2e-3
"""How long who waits sleeps before it looks again."""


class Queue:
    """A queue of experience between processes of one host: actors put items, learners get them, each item once.

    Its memory is shared and of fixed size. Items are copied in and out, never pickled. Any process may be killed at any moment:
    no lock stays held, no half-written item is read, and no item is got twice. The queue itself is pickled: pass it to processes
    as any argument, or give them `pickle.dumps(queue)`, which is some hundred bytes. Who did so must run and keep the queue
    until they have it.

    Args:
        like: an example of an item: tensors, arrays or numbers by name. Every item has these names, shapes and dtypes.
        capacity: how many items fit.
        overflow: what `put` does when the queue is full. "wait": it waits, so that actors go no faster than learners;
            "drop_oldest": the oldest item makes room; "drop_newest": the new item is dropped.

    Raises:
        ConfigurationError: an argument out of its range, or an item that is not like the example.
        SharedMemoryError: the host has too little shared memory, or the process that passed the queue is gone.

    >>> queue = ps.Queue({"observation": torch.zeros(4), "reward": 0.0}, capacity=8)
    >>> for version in 3, 6, 7:  # an actor: the version of the policy that it acted by
    ...     kept = queue.put({"observation": torch.ones(4), "reward": version / 10}, version=version)
    >>> batch = queue.get_batch(2, version=8, max_age=2)  # a learner at version 8: what is older than 6 is dropped
    >>> batch["observation"].shape, batch["reward"].tolist()
    (torch.Size([2, 4]), [0.6, 0.7])
    >>> [(name, number) for name, number in queue.stats().items() if number]  # worker.log(queue.stats("queue/")) shows them
    [('put', 3), ('got', 2), ('dropped_old', 1), ('age_mean', 1.5), ('age_max', 2)]
    """

    def __init__(self, like: Mapping[str, Any], capacity: int, *, overflow: str = "wait") -> None:
        if overflow not in OVERFLOWS:
            raise ConfigurationError(f"ps.Queue: {unknown_name('overflow', overflow, OVERFLOWS)}")
        if not isinstance(like, Mapping) or not like:
            raise ConfigurationError(f"ps.Queue(like={like!r}): tensors by name, such as {{'reward': 0.0}}")
        fields = {name: _kind(_tensor(name, value)) for name, value in like.items()}
        layout = Layout(_whole("capacity", capacity, 1), overflow, fields)
        self._open(SharedBlock.create(sum(layout.sizes()), f"a queue of {capacity:,} items"), layout)

    def _open(self, block: SharedBlock, layout: Layout) -> None:
        self._block, self._layout, self._slots = block, layout, Slots(block, layout)
        self._lock = ProcessLock(block.fd)
        found = os.fstat(block.fd)
        _opened[found.st_dev, found.st_ino] = self

    def __reduce__(self) -> Any:
        found = os.fstat(self._block.fd)
        place = "a ps.Queue", os.getpid(), self._block.fd, found.st_dev, found.st_ino, self._block.nbytes
        return _at, (TablePlace(*place), self._layout)

    @property
    def capacity(self) -> int:
        """How many items fit."""
        return self._layout.capacity

    def __len__(self) -> int:
        """How many items are there."""
        return int(np.count_nonzero(self._slots.tickets))

    def put(self, item: Mapping[str, Any], *, version: int, timeout_s: float = WAIT_S) -> bool:
        """Put an item that the policy of this version made. Whether it is in the queue: False if "drop_newest" dropped it.

        Raises:
            ConfigurationError: the item is not like the example.
            DeadlineError: with overflow="wait", after `timeout_s` without room.
        """
        values, made = self._checked(item), _whole("version", version)
        return self._when(lambda: self._slots.put(values, made), "put waited {} s for room", timeout_s)

    def get(self, *, version: int | None = None, max_age: int | None = None, timeout_s: float = WAIT_S) -> Items:
        """The oldest item: `get_batch` of one, without the dimension of the batch."""
        one = self.get_batch(1, version=version, max_age=max_age, timeout_s=timeout_s)
        return {name: values[0] for name, values in one.items()}

    def get_batch(
        self, n: int, *, version: int | None = None, max_age: int | None = None, timeout_s: float = WAIT_S
    ) -> Items:
        """The `n` oldest items, stacked. They are taken all at once, so none is lost where they do not come in time.

        Args:
            version: the learner's. An item's age is by how many versions it is older.
            max_age: items that are older are dropped.
            timeout_s: how long to wait for n items.

        Raises:
            ConfigurationError: an argument out of its range.
            DeadlineError: after `timeout_s` with fewer than n.
        """
        if _whole("n", n, 1) > self.capacity:
            raise ConfigurationError(f"ps.Queue.get_batch(n={n}): the queue has room for {self.capacity} items")
        if version is None and max_age is not None:
            raise ConfigurationError(f"ps.Queue(max_age={max_age!r}): it takes version=, too, which ages count from")
        now = None if version is None else _whole("version", version)
        most = None if max_age is None else _whole("max_age", max_age)
        return self._when(lambda: self._slots.take(n, now, most), f"get waited {{}} s for {n} of its items", timeout_s)

    def stats(self, prefix: str = "") -> dict[str, float]:
        """What all processes did since the queue was made, for `worker.log(queue.stats("queue/"))`.

        `put` items came in, `got` were taken, `size` are there. `dropped_old` were older than max_age; `dropped_oldest` and
        `dropped_newest` found the queue full, and the last are not among `put`. `lost` went with a process that was killed as it
        put or got them. `age_mean` and `age_max` are of items got with `version=`.
        """
        stats = self._when(self._slots.stats, "stats waited {} s", WAIT_S)
        return {prefix + name: number for name, number in stats.items()}

    def _when(self, attempt: Callable[[], T | None], wait: str, timeout_s: float) -> T:
        """What the attempt gives, under the lock, as soon as that is not None."""
        end_s, pause_s = time.monotonic() + timeout_s, FIRST_PAUSE_S
        while True:
            if locked := self._lock.take():
                try:
                    if (found := attempt()) is not None:
                        return found
                finally:
                    self._lock.release()
            if not time.monotonic() < end_s:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        state = f"{len(self)} of {self.capacity} slots are taken; is the other side alive, and fast enough?"
        locking = "another process or thread holds the lock; is it stopped?"
        raise DeadlineError(f"ps.Queue.{wait.format(f'{timeout_s:g}')}: {state if locked else locking}")

    def _checked(self, item: Mapping[str, Any]) -> Items:
        fields = self._layout.fields
        if not isinstance(item, Mapping) or item.keys() != fields.keys():
            names = [*item] if isinstance(item, Mapping) else type(item).__name__
            raise ConfigurationError(f"ps.Queue.put: the item has {names}; the queue's items have {[*fields]}")
        values = {name: _tensor(name, item[name]) for name in fields}
        for name, value in values.items():
            if _kind(value) != fields[name]:
                given, wanted = ("{} of shape {}".format(*one) for one in (_kind(value), fields[name]))
                raise ConfigurationError(f"ps.Queue.put: {name!r} is {given}; the queue's items have {wanted}")
        return values


_opened: WeakValueDictionary[tuple[int, int], Queue] = WeakValueDictionary()
"""This process's queues by device and inode: one object each, with one descriptor, as `ProcessLock` wants it."""


def _at(place: TablePlace, layout: Layout) -> Queue:
    """The queue that another process has, or this one."""
    if (own := _opened.get((place.device, place.inode))) is not None:
        return own
    queue = Queue.__new__(Queue)
    queue._open(SharedBlock.at(place), layout)
    return queue


def _tensor(name: str, value: Any) -> torch.Tensor:
    """As a dense tensor of the CPU."""
    try:
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        return tensor.detach().cpu().to_dense()
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise ConfigurationError(
            f"ps.Queue: {name!r} is a {kind}; an item has tensors, arrays and numbers ({error})"
        ) from error


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...]]:
    return tensor.dtype, tuple(tensor.shape)


def _whole(name: str, value: int, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 1 << 62:
        raise ConfigurationError(f"ps.Queue({name}={value!r}): a whole number, at least {least}")
    return int(value)
