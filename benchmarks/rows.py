"""A table of 1e6 x 32 numbers, of which a step uses 256 rows: sent by rows, sent whole, and torch alone.

    python benchmarks/rows.py --json rows.json

Two workers; steps a second of both. "dense" is the same model without `sparse=True`. The bar is 30 times dense.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD, Optimizer

import plesio as ps

ROWS, WIDTH, BAGS, PER_BAG = 1_000_000, 32, 16, 16
STEPS = {True: 4000, False: 40}


def model_of(sparse: bool) -> nn.EmbeddingBag:
    torch.manual_seed(0)
    return nn.EmbeddingBag(ROWS, WIDTH, sparse=sparse, mode="sum")


def step(model: nn.Module, optimizer: Optimizer, source: torch.Generator) -> None:
    optimizer.zero_grad()
    model(torch.randint(0, ROWS, (BAGS, PER_BAG), generator=source)).square().mean().backward()
    optimizer.step()


def train(worker: ps.Worker, sparse: bool) -> None:
    model = model_of(sparse)
    model, optimizer = worker.prepare(model, SGD(model.parameters(), lr=0.1))
    source = torch.Generator().manual_seed(worker.rank)
    for _ in worker.steps(STEPS[sparse]):
        step(model, optimizer, source)


def bare(sparse: bool) -> float:
    model, source, steps = model_of(sparse), torch.Generator().manual_seed(0), STEPS[sparse] // 4
    optimizer = SGD(model.parameters(), lr=0.1)
    began_s = time.perf_counter()
    for _ in range(steps):
        step(model, optimizer, source)
    return steps / (time.perf_counter() - began_s)


def measured(strategy: str) -> dict[str, float]:
    """Steps a second and bytes a contribution, by rows and dense."""
    found: dict[str, float] = {}
    for sparse, name in ((False, "dense"), (True, "rows")):
        run = ps.run(partial(train, sparse=sparse), strategy, workers=2)
        found[name] = run.steps / run.summary.wall_s
        found[f"{name} bytes"] = run.summary.bytes / run.steps
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    print(f"{'':12}{'rows':>8}{'dense':>8}{'times':>8}{'kB a step':>12}{'dense':>10}")
    for strategy in ("async_sgd", "sync_sgd"):
        every = [measured(strategy) for _ in range(options.runs)]
        one = {name: statistics.median(run[name] for run in every) for name in every[0]}
        one["times"] = statistics.median(run["rows"] / run["dense"] for run in every)
        kilobytes = (one[name] / 1000 for name in ("rows bytes", "dense bytes"))
        print(
            "{:12}{:8.0f}{:8.1f}{:8.1f}{:12.1f}{:10.0f}".format(
                strategy, one["rows"], one["dense"], one["times"], *kilobytes
            )
        )
        results.append({"strategy": strategy, **one})
    alone = {name: bare(sparse) for sparse, name in ((True, "rows"), (False, "dense"))}
    print("{:12}{rows:8.0f}{dense:8.1f}{:8.1f}".format("torch alone", alone["rows"] / alone["dense"], **alone))
    results.append({"strategy": "torch alone", **alone})
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
