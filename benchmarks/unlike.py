"""Unlike machines in lock step: 2 workers, 100 ms for half of a global batch of 128, one of them three times slower.

    python benchmarks/unlike.py --json FILE [--quick]

The ideal is the sum of both workers' nominal speeds, in samples a second, without exchanges and without waiting. With even
shares the slow worker sets the pace of both: half of that. `worker.share_of_batch` measures both and cuts batches so that they
take equally long; the rounds before it has are counted, too. Real processes, digits.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from _report import Row, interleave, meets, parser, report, row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import digits

BATCH, STEP_S, SLOW = 128, 0.1, 3.0
IDEAL = BATCH / 2 / STEP_S * (1 + 1 / SLOW)
"""Samples a second."""
WANTED = ">= 0.95"


def train(worker: ps.Worker, balanced: bool) -> None:
    """All workers draw the same batch for a version, and each takes its share."""
    torch.manual_seed(worker.seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=digits.LEARNING_RATE, momentum=0.9)
    model, optimizer = worker.prepare(model, optimizer)
    images, labels = digits.TRAIN.tensors
    while True:
        draw = torch.Generator().manual_seed(worker.version)
        batch = torch.randint(len(labels), (BATCH,), generator=draw)
        mine = batch[worker.share_of_batch(BATCH, rounds=None if balanced else 0)]
        optimizer.zero_grad()
        cross_entropy(model(images[mine]), labels[mine]).backward()
        optimizer.step()


def share(strategy: str, balanced: bool, seconds: float) -> float:
    """Of the ideal throughput."""
    run = ps.run(
        partial(train, balanced=balanced),
        strategy,
        workers=2,
        faults=[ps.Slow(worker=0, factor=SLOW)],
        pace=ps.Pace(step_s=STEP_S),
        until=ps.Until(seconds=seconds),
    )
    return run.samples / run.wall_s / IDEAL


def rows(arguments: argparse.Namespace) -> list[Row]:
    seconds = 3.0 if arguments.quick else 20.0
    found = []
    for strategy in ("sync_sgd", "allreduce"):
        tasks = {name: partial(share, strategy, name == "balanced", seconds) for name in ("even", "balanced")}
        values = interleave(tasks, arguments.runs, strategy)
        of = f"{strategy}, one of 2 workers {SLOW:g} times slower: share of the ideal"
        even = {"against": "even shares", "against_values": values["even"]}
        one = row(of, values["balanced"], "share", **even)
        found.append(replace(one, target=WANTED, met=meets(one.value, WANTED)))
    return found


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=3).parse_args()
    report("unlike machines: shares of a batch by speed", rows(given), given.json)
