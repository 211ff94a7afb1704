"""A table of 1e6 x 32 numbers, of which a step uses 256 rows: sent by rows, sent whole, and torch alone.

    python benchmarks/rows.py --json rows.json

Two workers; steps a second of both. "dense" is the same model without `sparse=True`. The bar is 30 times dense.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import nn
from torch.optim import SGD, Optimizer

import plesio as ps
from _report import interleave, parser, progress, report, row

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


def together(strategy: str, sparse: bool) -> float:
    """Steps a second of two workers."""
    run = ps.run(partial(train, sparse=sparse), strategy, workers=2, progress=False)
    progress.print(f"{run.summary.bytes / run.steps / 1000:,.1f} kB a step")
    return run.steps / run.summary.wall_s


def main() -> None:
    """Rows against the dense table, asynchronously, in lock step and without plesio."""
    arguments = parser("A table of which a step uses few rows.").parse_args()
    if arguments.quick:
        STEPS.update({True: 40, False: 4})
    runs, rows = 1 if arguments.quick else arguments.runs, []
    for name in ("async_sgd", "sync_sgd", "torch alone"):
        one = bare if name == "torch alone" else partial(together, name)
        values = interleave({"rows": partial(one, sparse=True), "dense": partial(one, sparse=False)}, runs, name)
        target = None if name == "torch alone" else ">= 30"
        against = {"against": "dense", "against_values": values["dense"], "target": target}
        rows.append(row(f"{name}, by rows", values["rows"], "steps/s", **against))
    report("A table of 1e6 x 32, 256 rows a step", rows, arguments.json)


if __name__ == "__main__":
    main()
