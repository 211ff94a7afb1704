"""Threads that start once.

An epoch of a small problem takes two milliseconds; starting threads for each would double it. So a pool of
threads is made once for each count and waits between epochs. Kernels release the interpreter lock (`nogil`), so the
threads run at once; which chunk of rows a thread takes next is settled inside the kernel, by `fetch_add`.

The caller is thread 0: one thread means no other thread at all.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from numbers import Integral
from typing import Any

from plesio.errors import ConfigurationError


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_count(threads: int | None, *, warned: bool = False) -> int:
    """The number of threads asked for: None and -1 mean every core; more than the cores is allowed, and warned of once.

    Raises ConfigurationError for anything else below 1.

    >>> thread_count(1)
    1
    """
    if threads is None or threads == -1:
        return cores()
    if isinstance(threads, bool) or not isinstance(threads, Integral) or threads < 1:
        raise ConfigurationError(
            f"threads must be a whole number of at least 1, or None for every core; got {threads!r}."
        )
    if threads > cores() and not warned:
        warnings.warn(
            f"threads={threads} is more than the {cores()} cores this process may use: "
            "they will take turns, and no faster than with one each.",
            stacklevel=3,
        )
    return int(threads)


class Threads:
    """`count` threads that wait for work, the caller among them as thread 0.

    >>> Threads(2).run(lambda thread: thread * 10)
    [0, 10]
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._one_run = threading.Lock()
        self._others = ThreadPoolExecutor(max(count - 1, 1), "plesio-hogwild")

    def run(self, call: Callable[[int], Any]) -> list[Any]:
        """Call `call(thread)` on every thread at once; the results by thread, or an error, when all are done."""
        with self._one_run:
            others = [self._others.submit(call, thread) for thread in range(1, self.count)]
            try:
                return [call(0), *(other.result() for other in others)]
            finally:
                _all_back(others)


def _all_back(others: list[Future[Any]]) -> None:
    while True:
        try:
            wait(others)
            return
        except KeyboardInterrupt:  # not before all are back: they still work on the caller's arrays
            continue


_pools: dict[tuple[int, int], Threads] = {}
_making = threading.Lock()


def pool(count: int) -> Threads:
    """The process's pool of `count` threads, started when first asked for; a forked child starts its own.

    >>> pool(2) is pool(2)
    True
    """
    key = (os.getpid(), count)
    with _making:
        if key not in _pools:
            _pools[key] = Threads(count)
        return _pools[key]


SHARE = 1 << 18  # with fewer numbers a thread, waking it takes longer than its share


def shares(length: int, threads: int, numbers: int = 1) -> list[tuple[int, int]]:
    """Cut `length` things, each of so many `numbers`, into (first, stop), one for each thread that is worth waking.

    >>> shares(10, 4)
    [(0, 10)]
    """
    count = max(1, min(threads, length * numbers // SHARE))
    return [(length * part // count, length * (part + 1) // count) for part in range(count)]


def by_shares(parts: list[tuple[int, int]], work: Callable[[int, int], Any]) -> list[Any]:
    """Call `work(first, stop)` for each share, all at once; the results by share."""
    if len(parts) == 1:  # needs no pool, and may be inside one already
        return [work(*parts[0])]
    return pool(len(parts)).run(lambda thread: work(*parts[thread]))
