"""Cache lines, cache size and memory bandwidth of this machine, by which sparse kernels choose their way."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plesio.kernels.lanes import LANES, LINE_BYTES
from plesio.sparse.threads import cores, pool

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_ASSUMED_CACHE_BYTES = 16 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def numbers(count: int) -> NDArray[np.float32]:
    """That many zeros from the beginning of a cache line on: rows that lie across one more line cost a tenth of the speed."""
    memory = np.zeros(count + LANES, np.float32)
    start = -memory.ctypes.data % LINE_BYTES // memory.itemsize
    return memory[start : start + count]


@cache
def last_level_cache_bytes() -> int:
    """The size of the largest cache the first core sees; 16 MiB is assumed where the system does not tell.

    >>> last_level_cache_bytes() > 0
    True
    """
    sizes = [_bytes(path.read_text()) for path in _CACHES.glob("index*/size")]
    if sys.platform == "darwin":
        told = subprocess.run(["sysctl", "-n", "hw.l3cachesize", "hw.l2cachesize"], capture_output=True, text=True)
        sizes = [int(line) for line in told.stdout.split()]
    return max(sizes, default=0) or _ASSUMED_CACHE_BYTES


@cache
def memory_bandwidth() -> float:
    """Bytes a second that all cores together read and write when each copies a large array; measured once, in 0.1 s."""
    length = min(max(2 * last_level_cache_bytes(), 32 << 20), 128 << 20) // 8
    source, target = np.ones(length), np.ones(length)  # written to: its pages are there before the clock runs
    count = cores()
    parts = [slice(length * part // count, length * (part + 1) // count) for part in range(count)]
    best_s = float("inf")
    end = time.perf_counter() + 0.05
    while True:
        began = time.perf_counter()
        pool(count).run(lambda thread: np.copyto(target[parts[thread]], source[parts[thread]]))
        now = time.perf_counter()
        best_s = min(best_s, now - began)
        if now > end:
            return 2 * source.nbytes / best_s


def _bytes(size: str) -> int:
    """The kernel's way to write a size: `32768K`."""
    number, unit = size.strip()[:-1], size.strip()[-1:]
    return int(number) * _UNITS[unit] if unit in _UNITS else int(number + unit)
