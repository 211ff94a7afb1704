"""Code that sleeps or reads a clock gets one warning under the virtual clock."""

from __future__ import annotations

import functools
import logging
import queue
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import plesio as ps
from plesio.launch.one_process.wall_clock import no_wall_clock
from support.loops import FEATURES, data

LONG_S = 1e6


def told(function: Callable[[], object]) -> list[str]:
    """What was warned of while it ran."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with no_wall_clock():
            function()
    assert all(one.filename == __file__ for one in caught), "the warning points at the user's line"
    return [str(one.message).removeprefix("the training function called ").split()[0] for one in caught]


def test_sleep_is_skipped_and_warns_once() -> None:
    def train() -> None:
        for _ in range(3):
            time.sleep(LONG_S)

    assert told(train) == ["time.sleep"]


def test_each_clock_warns_once_and_still_works() -> None:
    def train() -> None:
        for _ in range(2):
            assert 0 < time.time() <= time.time()
            assert time.perf_counter() <= time.perf_counter()
            assert isinstance(time.monotonic_ns(), int)

    assert told(train) == ["time.time", "time.perf_counter", "time.monotonic_ns"]


def test_clock_use_of_libraries_does_not_warn() -> None:
    def train() -> None:
        logging.getLogger("nobody").warning("has a time")
        with pytest.raises(queue.Empty):
            queue.Queue[int]().get(timeout=0.001)
        torch.randn(4, 4, requires_grad=True).sum().backward()
        with torch.profiler.profile():
            torch.randn(2)

    assert told(train) == []


def test_patched_names_are_restored_after_an_error() -> None:
    def names() -> list[object]:
        return [time.sleep, time.time, time.monotonic]

    def fail(replaced: bool) -> None:
        assert replaced
        raise ValueError("mine")

    before = names()
    with pytest.raises(ValueError, match="mine"), no_wall_clock():
        fail(all(a is not b for a, b in zip(names(), before, strict=True)))
    assert names() == before


def loading(worker: Any, processes: int) -> None:
    inputs, labels = data(24)
    model = torch.nn.Linear(FEATURES, 3)
    loader = DataLoader(list(zip(inputs, labels, strict=True)), batch_size=4, num_workers=processes)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_loader_with_processes_gives_the_same_weights() -> None:
    """The loader's processes are no threads of the training function: no warning."""
    runs = [
        ps.run(functools.partial(loading, processes=count), ps.async_sgd(), workers=2, engine=ps.Simulated("uniform"))
        for count in (0, 2)
    ]
    for name, value in runs[0].state_dict.items():
        assert torch.equal(value, runs[1].state_dict[name])
    assert "plesio" in sys.modules
