"""Under a virtual clock a training function that sleeps, or reads the wall clock, does nothing useful: say so, once.

While a simulation runs, `time.sleep` and the clocks of `time` warn when user code calls them, and so do new threads and
processes; code of installed packages and of the standard library is left alone.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_PATHS = sysconfig.get_paths()
_NOT_THE_USERS = (
    *{_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parent),
    "<frozen",
)


@contextmanager
def no_wall_clock(train: Callable[..., object]) -> Iterator[None]:
    """Watch over `train` while the block runs."""
    told: set[str] = set()
    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
        before = getattr(owner, name)
        undo.append((owner, name, before))
        setattr(owner, name, by)
        for key, value in list(_globals(train).items()):
            if value is before:  # from time import sleep
                undo.append((_globals(train), key, before))
                _globals(train)[key] = by

    def guarded(name: str, plain: Callable[..., Any], why: str, instead: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if not _users(sys._getframe(1).f_code.co_filename):
                return plain(*arguments, **named)
            if name not in told:
                told.add(name)
                warnings.warn(f"the training function called {name} under the virtual clock: {why}", RuntimeWarning, 3)
            return instead(*arguments, **named)

        return call

    no_time = "it took no virtual time and was skipped; the cluster's step times say how long a step takes"
    replace(time, "sleep", guarded("time.sleep", time.sleep, no_time, lambda *_: None))
    real = "that is the time of this computer, not of the simulated worker"
    for clock in _CLOCKS:
        plain = getattr(time, clock)
        replace(time, clock, guarded(f"time.{clock}", plain, real, plain))
    beside = "what it does beside the simulation takes no virtual time, and makes runs differ"
    for owner, title in ((threading.Thread, "Thread.start"), (BaseProcess, "Process.start")):
        replace(owner, "start", guarded(title, owner.start, beside, owner.start))
    try:
        yield
    finally:
        for owner, name, before in reversed(undo):
            if isinstance(owner, dict):
                owner[name] = before
            else:
                setattr(owner, name, before)


def _users(file: str) -> bool:
    return not file.startswith(_NOT_THE_USERS)


def _globals(train: Callable[..., object]) -> dict[str, Any]:
    while hasattr(train, "func"):  # functools.partial
        train = train.func
    return getattr(train, "__globals__", {})
