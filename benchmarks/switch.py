"""What it costs to switch to another strategy: the step in which it happens, beside the usual steps before and after it.

    python benchmarks/switch.py --json FILE [--quick]

Two workers train a model of 1e6 parameters with AdamW, and the run goes round four strategies. A step is what the loop sees of
it: forward, backward, `optimizer.step()`. Those that exchange something are compared: the one that ends under another strategy
against the slower of the medians before and after. It may have to wait for the slowest worker, which is one step more.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from functools import partial
from itertools import groupby, pairwise
from statistics import median

import torch
from torch import nn

import plesio as ps
from _report import Row, parser, report, row

ROUND = (ps.sync_sgd(), ps.local_sgd(4), ps.async_sgd(), ps.diloco(4, codec="int8"))
VERSIONS = 30  # of each phase
WIDTH = 1000
Step = tuple[int, int, float]


def train(worker: ps.Worker, versions: int) -> list[Step]:
    """Of each step the phase and the version that it led to, and its seconds."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model, optimizer = worker.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    inputs, labels = torch.randn(16, WIDTH), torch.randint(10, (16,))
    steps: list[Step] = []
    while not worker.stopped:
        began_s = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        steps.append((worker._exchange.phase, worker.version, time.perf_counter() - began_s))  # type: ignore[union-attr]
        if worker.version >= versions:
            worker.stop("all phases are over")
    return steps


def exchanged(steps: list[Step]) -> list[tuple[int, float]]:
    """Phase and milliseconds of those with which a version came."""
    return [(phase, 1e3 * took) for (_, before, _), (phase, version, took) in pairwise(steps) if version > before]


def rows(arguments: argparse.Namespace) -> list[Row]:
    ring = ROUND * (1 if arguments.quick else arguments.runs) + ROUND[:1]
    plan = ps.phases(ring[0], *[(VERSIONS * place, one) for place, one in enumerate(ring) if place])
    run = ps.run(partial(train, versions=VERSIONS * len(ring)), plan, workers=2, progress=False)
    usual, cost, control = (defaultdict[str, list[float]](list) for _ in range(3))
    for steps in run.returned:
        phases = [
            (phase, [took for _, took in those]) for phase, those in groupby(exchanged(steps), lambda one: one[0])
        ]
        for (before, was), (after, now) in pairwise(phases):
            name = f"{ring[before].recipe} to {ring[after].recipe}"
            usual[name].append(max(median(was[:-1]), median(now[1:])))
            cost[name].append(now[0] - usual[name][-1])
            control[name].append(was[-1] - usual[name][-1])
    found = []
    for name, values in cost.items():
        step_ms = median(usual[name])
        found.append(row(f"{name}: beyond a step of {step_ms:.0f} ms", values, "ms", target=f"<= {step_ms + 50:.0f}"))
        found.append(row(f"{name}: the same of the step before", control[name], "ms"))
    return found


if __name__ == "__main__":
    given = parser(__doc__ or "").parse_args()
    report("switches between strategies, 1e6 parameters, 2 workers", rows(given), given.json)
