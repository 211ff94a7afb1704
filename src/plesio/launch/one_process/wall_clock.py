"""Warns, once each, when a training function sleeps or reads the wall clock although its time is virtual.

While a simulation runs, `time.sleep` and the clocks of `time` warn when user code calls them. Calls from installed packages
and the standard library are left alone.
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

from plesio.observe.provenance import without_arguments

_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_FOLDERS = {f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_NOT_USERS = ("<frozen", f"{Path(__file__).parents[1]}/", *_FOLDERS)

SKIPPED = "it took no virtual time and was skipped; the cluster's step times say how long a step takes"
REAL = "that is the time of this computer, not of the simulated worker"


@contextmanager
def no_wall_clock(train: Callable[..., object]) -> Iterator[None]:
    """Watch over `train`, and all code that is neither an installed package's nor the standard library's."""
    workers = threading.get_ident()  # others, such as a sink's thread, live in real time
    warned: set[str] = set()
    replaced: list[tuple[dict[str, Any], str, Any]] = []

    def guarded(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            users = threading.get_ident() == workers and _is_users(sys._getframe(1).f_code.co_filename)
            if users and name not in warned:
                warned.add(name)
                why = SKIPPED if name == "sleep" else REAL
                warnings.warn(
                    f"the training function called time.{name} under the virtual clock: {why}", RuntimeWarning, 2
                )
            return None if users and name == "sleep" else plain(*arguments)

        return call

    try:
        guards = [(getattr(time, name), guarded(name, getattr(time, name))) for name in ("sleep", *_CLOCKS)]
        for names in (vars(time), *_users_names(train)):
            for key, value in list(names.items()):
                for plain, guard in guards:
                    if value is plain:  # also from time import sleep
                        replaced.append((names, key, plain))
                        names[key] = guard
        yield
    finally:
        for names, key, plain in replaced:
            names[key] = plain


def _is_users(file: str) -> bool:
    return not file.startswith(_NOT_USERS)


def _users_names(train: Callable[..., object]) -> list[dict[str, Any]]:
    """The globals of the training function's script (no module, where it was run as a file) and of the user's modules."""
    inner = without_arguments(train)
    function = inner if hasattr(inner, "__globals__") else type(inner).__call__
    spaces = [getattr(function, "__globals__", {})]
    spaces += [
        vars(one) for one in list(sys.modules.values()) if _is_users(getattr(one, "__file__", None) or "<frozen")
    ]
    return list({id(space): space for space in spaces}.values())
