"""What a fold of a small model costs a server, beside the step of torch's optimizer alone.

    python benchmarks/fold.py --json FILE [--quick]

A fold here is all that is done with the tensors for one contribution: it is folded, and a version is published to its worker.
The rival is `torch.optim`'s `step()` on one flat tensor of as many numbers, which is a part of it. Both are taken right after
the last one, and after some sleep, as a server of workers that take their time finds its caches.
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
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.folding import build_folder
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.versions import Versions

PARAMETERS, WORKERS, SLEEP_S = 5_000, 4, 0.005
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], Optimizer]] = {
    "SGD": functools.partial(SGD, lr=0.01, momentum=0.9),
    "AdamW": functools.partial(AdamW, lr=0.001),
}


def ours(strategy: ps.Strategy, optimizer: str) -> Callable[[], None]:
    """One contribution folded, and its worker sent on."""
    layout = Layout([TensorSpec("w", (PARAMETERS,), "float32", Kind.TRAINED, 0)])
    ring = Versions([Arena.private(layout) for _ in range(WORKERS + 2)])
    slots = [Arena.private(layout) for _ in range(WORKERS)]
    spec = OptimizerSpec.of(OPTIMIZERS[optimizer]([torch.nn.Parameter(torch.zeros(PARAMETERS))]))
    folder = build_folder(strategy, [spec], ring, slots, WORKERS, lambda _: Arena.private(layout))
    for worker in range(WORKERS):
        folder.publish(worker)
    numbers = itertools.count()

    def fold() -> None:
        number = next(numbers)
        worker = number % WORKERS
        slots[worker].views[0].fill_(0.5)
        member = Member(worker, 1, number, number, 0, 1.0, 1, 1)
        folder.fold(Fold(number + 1, (member,), 1 / WORKERS, held=False, total_weight=1.0))
        folder.publish(worker)

    return fold


def torchs(optimizer: str) -> Callable[[], None]:
    """One step of torch's optimizer."""
    weights = torch.nn.Parameter(torch.zeros(PARAMETERS))
    steps = OPTIMIZERS[optimizer]([weights])

    def step() -> None:
        weights.grad = torch.full((PARAMETERS,), 0.5)
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


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All rows."""
    torch.set_num_threads(1)
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
    report(f"fold: {PARAMETERS:,} parameters", rows(given), given.json)
