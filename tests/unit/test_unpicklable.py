"""What cannot be sent to another process is named by its path."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import plesio as ps
from plesio.launch.local.unpicklable import culprit
from plesio.system.pickled import dumps

settings = SimpleNamespace(cache={"inner": [threading.Lock()], "other": 1})


def of_a_global(worker: ps.Worker) -> object:
    return settings


def of_an_argument(worker: ps.Worker, given: Any) -> None: ...


def of_a_closure() -> Callable[[ps.Worker], object]:
    cache = {3: (1, threading.Lock())}
    return lambda worker: cache


class Trains:
    def __init__(self) -> None:
        self.held = [{"x": threading.Lock()}]
        self.held.append({"itself": self})  # type: ignore[dict-item]

    def train(self, worker: ps.Worker) -> None: ...

    def __call__(self, worker: ps.Worker) -> None: ...


@pytest.mark.parametrize(
    ("train", "path"),
    [
        (of_a_global, 'settings.cache["inner"][0]'),
        (functools.partial(of_an_argument, given=settings), 'given.cache["inner"][0]'),
        (of_a_closure(), "cache[3][1]"),
        (Trains().train, 'self.held[0]["x"]'),
        (Trains(), 'held[0]["x"]'),
    ],
    ids=["global", "argument", "closure", "method", "object"],
)
def test_what_cannot_be_pickled_is_named_by_its_path(train: Any, path: str) -> None:
    assert culprit(train) == f"{path} is a lock: "


def test_a_run_says_it() -> None:
    cache = {"inner": [threading.Lock()]}
    with pytest.raises(ps.ConfigurationError, match=r'another process: cache\["inner"\]\[0\] is a lock: cannot pickle'):
        ps.run(lambda worker: cache, "sync_sgd", workers=1)


class RcParams(dict[str, float]):
    """As matplotlib's."""


def test_settings_of_matplotlib_go_by_name_and_a_copy_of_them_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy would set nothing where it arrives."""
    theirs = ModuleType("matplotlib")
    theirs.rcParams = RcParams({"lines.linewidth": 1.5})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", theirs)
    again, copy = pickle.loads(dumps([theirs.rcParams, RcParams(theirs.rcParams)]))
    assert again is theirs.rcParams
    assert copy == again
    assert copy is not again


@functools.cache
def of_this_file() -> object:
    return object()


def test_what_a_script_caches_goes_by_value_and_a_modules_by_name() -> None:
    """A process of its own does not know the script; the copy has the settings, and calls itself, as its functions do."""
    script: dict[str, Any] = {"__name__": "__main__", "functools": functools}
    code = "@functools.lru_cache(maxsize=7)\ndef rises(n):\n    return n and n + rises(n - 1)\ndef train(): return rises(4)"
    exec(code, script)
    script["rises"](2)
    train = pickle.loads(dumps(script["train"]))
    copy = train.__globals__["rises"]
    assert copy.cache_info() == (0, 0, 7, 0)
    assert (train(), copy.cache_parameters()["maxsize"], copy.cache_info().misses) == (10, 7, 5)
    assert copy is not script["rises"]
    assert pickle.loads(dumps(of_this_file)) is of_this_file
