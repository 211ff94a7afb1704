"""Warns, once each, when a training function sleeps or reads the wall clock although its time is virtual.

While a simulation runs, `time.sleep`, the clocks of `time`, and the start of threads and processes warn when user code calls
them. What installed packages and the standard library do on their own is left alone.
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
from types import FrameType
from typing import Any

from plesio.launch.provenance import without_arguments

_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_PATHS = sysconfig.get_paths()
_LIBRARY = ("<frozen", *{f"{_PATHS[name]}/" for name in ("stdlib", "platstdlib")})
_PACKAGES = (f"{Path(__file__).parents[1]}/", *{f"{_PATHS[name]}/" for name in ("purelib", "platlib")})

SKIPPED = "it took no virtual time and was skipped; the cluster's step times say how long a step takes"
REAL = "that is the time of this computer, not of the simulated worker"
BESIDE = "what it does beside the simulation takes no virtual time, and makes runs differ"


@contextmanager
def no_wall_clock(train: Callable[..., object]) -> Iterator[None]:
    """Watch over `train`, and all code that is neither an installed package's nor the standard library's."""
    told: set[str] = set()
    undo: list[tuple[Any, str, Any]] = []
    spaces = _users_names(train)

    def replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
        before = getattr(owner, name)
        undo.append((owner, name, before))
        setattr(owner, name, by)
        for space in spaces:
            for key, value in list(space.items()):
                if value is before:  # from time import sleep
                    undo.append((space, key, before))
                    space[key] = by

    def guarded(
        title: str, plain: Callable[..., Any], why: str, instead: Callable[..., Any], through_library: bool = False
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            above = _users_frame(sys._getframe(1), through_library)
            if not above:
                return plain(*arguments, **named)
            if title not in told:
                told.add(title)
                words = f"the training function called {title} under the virtual clock: {why}"
                warnings.warn(words, RuntimeWarning, above + 1)
            return instead(*arguments, **named)

        return call

    try:
        replace(time, "sleep", guarded("time.sleep", time.sleep, SKIPPED, lambda *_: None))
        for clock in _CLOCKS:
            plain = getattr(time, clock)
            replace(time, clock, guarded(f"time.{clock}", plain, REAL, plain))
        for owner, title in ((threading.Thread, "Thread.start"), (BaseProcess, "Process.start")):
            replace(owner, "start", guarded(title, owner.start, BESIDE, owner.start, through_library=True))
        yield
    finally:
        for owner, name, before in reversed(undo):
            if isinstance(owner, dict):
                owner[name] = before
            else:
                setattr(owner, name, before)


def _is_users(file: str) -> bool:
    return not file.startswith((*_PACKAGES, *_LIBRARY))


def _users_frame(caller: FrameType, through_library: bool) -> int:
    """How many frames up the user's code called; 0 if it did not.

    `through_library`: what the standard library does for user code counts, such as the threads that a pool starts.
    """
    frame: FrameType | None = caller
    above = 1
    while frame is not None:
        file = frame.f_code.co_filename
        if not through_library or file.startswith(_PACKAGES) or not file.startswith(_LIBRARY):
            return above if _is_users(file) else 0
        frame, above = frame.f_back, above + 1
    return 0


def _users_names(train: Callable[..., object]) -> list[dict[str, Any]]:
    """The names of the training function's script (no module, where it was run as a file) and of the user's modules."""
    inner = without_arguments(train)
    function = inner if hasattr(inner, "__globals__") else type(inner).__call__
    spaces = {id(space): space for space in [getattr(function, "__globals__", {})]}
    for module in list(sys.modules.values()):
        if _is_users(getattr(module, "__file__", None) or "<frozen"):
            spaces[id(vars(module))] = vars(module)
    return list(spaces.values())
