"""What a fold costs a server, beside the step of torch's optimizer alone, and beside the memory that it has to move.

    python benchmarks/fold.py --json FILE [--quick]

A fold here is all that is done with the tensors for one contribution: it is folded, and a version is published to its worker.
The rival is `torch.optim`'s `step()` on one flat tensor of as many numbers, which is a part of it; `limit` is a copy of as many
bytes as a fold reads and writes. A small model is folded right after the last fold, and after some sleep, as a server of workers
that take their time finds its caches. Of a large one the CPU time of one thread is taken.
In bfloat16 a fold is in float32, and torch's step in bfloat16.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch.optim import SGD, AdamW, Optimizer

import plesio as ps
from _report import Row, interleave, parser, report, row
from plesio.core.events import Fold, Member
from plesio.memory.folder import build_folder
from plesio.memory.publish import Versions
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.optimizer_spec import OptimizerSpec

SMALL, LARGE, WORKERS, SLEEP_S = 5_000, (1_000_000, 10_000_000), 4, 0.005
MOVED = {
    ("SGD", "async_sgd"): 9,
    ("SGD", "async_sgd plain"): 5,
    ("AdamW", "async_sgd"): 11,
    ("AdamW", "async_sgd plain"): 7,
}
"""Arrays of the model's size that a fold reads or writes."""
TARGETS = {("SGD", 1_000_000): "<= 1.4", ("SGD", 10_000_000): "<= 1.4", ("AdamW", 1_000_000): "<= 1.6"}
"""For the default strategy."""
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], Optimizer]] = {
    "SGD": functools.partial(SGD, lr=0.01, momentum=0.9),
    "AdamW": functools.partial(AdamW, lr=0.001),
}


def ours(strategy: ps.Strategy, optimizer: str, parameters: int = SMALL, dtype: str = "float32") -> Callable[[], None]:
    """One contribution folded, and its worker sent on."""
    layout = Layout([TensorSpec("w", (parameters,), dtype, Kind.TRAINED, 0)])
    ring = Versions([Arena.private(layout) for _ in range(WORKERS + 2)])
    slots = [Arena.private(layout) for _ in range(WORKERS)]
    spec = OptimizerSpec.of(OPTIMIZERS[optimizer]([torch.nn.Parameter(torch.zeros(1))]))
    folder = build_folder(strategy, [spec], ring, slots, WORKERS, lambda _: Arena.private(layout.wide))
    for worker in range(WORKERS):
        folder.publish(worker)
    for slot in slots:
        slot.views[0].fill_(0.5)
    numbers = itertools.count()

    def fold() -> None:
        number = next(numbers)
        worker = number % WORKERS
        if parameters == SMALL:  # as it comes out of the worker
            slots[worker].views[0].fill_(0.5)
        member = Member(worker, 1, number, 0, 1.0, 1, 1)
        folder.fold(Fold(number + 1, (member,), 1 / WORKERS))
        folder.publish(worker)

    return fold


def torchs(optimizer: str, parameters: int = SMALL, dtype: str = "float32") -> Callable[[], None]:
    """One step of torch's optimizer."""
    weights = torch.nn.Parameter(torch.zeros(parameters, dtype=getattr(torch, dtype)))
    weights.grad = torch.full_like(weights, 0.5)
    steps = OPTIMIZERS[optimizer]([weights])

    def step() -> None:
        if parameters == SMALL:
            weights.grad = torch.full((parameters,), 0.5)
        steps.step()

    return step


def median_us(deed: Callable[[], None], sleep_s: float, times: int) -> float:
    """Microseconds."""
    took_s = []
    for _ in range(times):
        time.sleep(sleep_s)
        began_s = time.perf_counter()
        deed()
        took_s.append(time.perf_counter() - began_s)
    return statistics.median(took_s) * 1e6


def copied(arrays: int, parameters: int) -> Callable[[], None]:
    """Half of so many arrays copied to the other half."""
    given, to = torch.ones(2, arrays * parameters // 2).unbind()
    return lambda: [to.copy_(given)].clear()


def cpu_ms(deed: Callable[[], None], times: int) -> float:
    """The median of its CPU time, in milliseconds."""
    took_s = []
    for _ in range(times):
        began_s = time.process_time()
        deed()
        took_s.append(time.process_time() - began_s)
    return statistics.median(took_s) * 1e3


def large(arguments: argparse.Namespace) -> list[Row]:
    """Models that do not fit the first caches."""
    found = []
    for parameters, optimizer in itertools.product(LARGE[:1] if arguments.quick else LARGE, OPTIMIZERS):
        strategies = {"async_sgd": ps.async_sgd(), "async_sgd plain": ps.async_sgd("plain")}
        deeds = {name: ours(one, optimizer, parameters) for name, one in strategies.items()}
        deeds["torch"] = torchs(optimizer, parameters)
        deeds |= {f"limit of {name}": copied(MOVED[optimizer, name], parameters) for name in strategies}
        times = 5 if arguments.quick else 40_000_000 // parameters
        tasks = {name: functools.partial(cpu_ms, deed, times) for name, deed in deeds.items()}
        took_ms = interleave(tasks, 1 if arguments.quick else arguments.runs)
        for name in strategies:
            measure = f"{name} with {optimizer}, {parameters:.0e}: CPU of a fold"
            target = TARGETS.get((optimizer, parameters)) if name == "async_sgd" else None
            against, limit = took_ms["torch"], took_ms[f"limit of {name}"]
            found.append(
                row(measure, took_ms[name], "ms", against="torch's step", against_values=against, target=target)
            )
            found.append(row(measure, took_ms[name], "ms", against="a copy of its bytes", against_values=limit))
    return found


def half(arguments: argparse.Namespace) -> list[Row]:
    """Models in bfloat16, which the server steps in float32; torch steps them in bfloat16."""
    parameters = LARGE[0] if arguments.quick else LARGE[-1]
    found = []
    for optimizer in OPTIMIZERS:
        strategies = {"async_sgd": ps.async_sgd(), "async_sgd plain": ps.async_sgd("plain")}
        deeds = {name: ours(one, optimizer, parameters, "bfloat16") for name, one in strategies.items()}
        deeds["torch"] = torchs(optimizer, parameters, "bfloat16")
        tasks = {name: functools.partial(cpu_ms, deed, 4) for name, deed in deeds.items()}
        took_ms = interleave(tasks, 1 if arguments.quick else arguments.runs)
        for name in strategies:
            measure = f"{name} with {optimizer}, {parameters:.0e} in bfloat16: CPU of a fold"
            found.append(row(measure, took_ms[name], "ms", against="torch's step", against_values=took_ms["torch"]))
    return found


def small(arguments: argparse.Namespace) -> list[Row]:
    """A model of a few thousand numbers."""
    times = 50 if arguments.quick else 500
    found = []
    for optimizer in OPTIMIZERS:
        deeds = {
            "async_sgd": ours(ps.async_sgd(), optimizer),
            "async_sgd plain": ours(ps.async_sgd("plain"), optimizer),
            "torch": torchs(optimizer),
        }
        for when, sleep_s in (("at once", 0.0), ("after 5 ms asleep", SLEEP_S)):
            tasks = {name: functools.partial(median_us, deed, sleep_s, times) for name, deed in deeds.items()}
            took_us = interleave(tasks, 1 if arguments.quick else arguments.runs)
            for name in ("async_sgd", "async_sgd plain"):
                measure = f"{name} with {optimizer}: a fold, {when}"
                found.append(row(measure, took_us[name], "us", against="torch's step", against_values=took_us["torch"]))
    return found


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=3).parse_args()
    torch.set_num_threads(1)
    report("fold", [*small(given), *large(given), *half(given)], given.json)
