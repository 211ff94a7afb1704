"""Warns, once each, when code of the user's sleeps or reads the wall clock although its time is virtual.

While a simulation runs, `time.sleep` and the clocks of `time` warn when a user's code calls them there. Calls from installed
packages and the standard library are left alone, and so is what a script imported from `time` by name.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CLOCKS = ("sleep", "time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_FOLDERS = {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_NOT_USERS = ("<frozen", f"{Path(__file__).parents[2]}/", *_FOLDERS)

SKIPPED = "it took no virtual time and was skipped; the cluster's step times say how long a step takes"
REAL = "that is the time of this computer, not of the simulated worker"


@contextmanager
def no_wall_clock() -> Iterator[None]:
    """Inside, `time` watches over all code that is neither an installed package's nor the standard library's."""
    workers = threading.get_ident()  # others, such as a sink's thread, live in real time
    warned: set[str] = set()
    plain = {name: getattr(time, name) for name in _CLOCKS}

    def guarded(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            file = sys._getframe(1).f_code.co_filename
            users = threading.get_ident() == workers and not file.startswith(_NOT_USERS)
            if users and name not in warned:
                warned.add(name)
                why = SKIPPED if name == "sleep" else REAL
                warnings.warn(
                    f"the training function called time.{name} under the virtual clock: {why}", RuntimeWarning, 2
                )
            return None if users and name == "sleep" else plain[name](*arguments)

        return call

    try:
        for name in _CLOCKS:
            setattr(time, name, guarded(name))
        yield
    finally:
        for name, one in plain.items():
            setattr(time, name, one)
