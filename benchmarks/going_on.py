"""Whether workers that go on while answers travel get to an accuracy sooner, by optimizer: the digits, 8 simulated workers.

    python benchmarks/going_on.py --json going_on.json

On the slow link and the far machines of `choose.py`: in lock step, by local steps with `overlap=False` and with `overlap=True`.
Seconds of virtual time to 95% accuracy, at most 10; the mean of `--runs` seeds. Gradients are real and the time is virtual, so
that the figures are the same on any machine. docs/local-steps.md has the table.
"""

from __future__ import annotations

import argparse
import statistics
from functools import cache, partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from _report import Row, parser, progress, report
from choose import WORKERS, clusters, digits

SGD = "SGD at 0.2, momentum 0.9"
OPTIMIZERS = {
    SGD: partial(torch.optim.SGD, lr=0.2, momentum=0.9),
    "SGD at 0.05, momentum 0.9": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "AdamW at 0.01": partial(torch.optim.AdamW, lr=0.01),
}
H, MOST_S = 16, 10.0
CASES = [("slow link", ps.local_sgd, one) for one in OPTIMIZERS]
CASES += [("cross-region", recipe, SGD) for recipe in (ps.local_sgd, ps.async_local_sgd)]


def train(worker: ps.Worker, optimizer: str) -> None:
    """That of the example, with this optimizer."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loader = DataLoader(digits.TRAIN, batch_size=digits.BATCH, shuffle=True)
    model, stepper, loader = worker.prepare(model, OPTIMIZERS[optimizer](model.parameters()), loader)
    for _ in range(digits.EPOCHS):
        for images, labels in loader:
            stepper.zero_grad()
            cross_entropy(model(images), labels).backward()
            stepper.step()


@cache
def one_run(kind: str, strategy: ps.Strategy, optimizer: str, seed: int) -> float:
    """Seconds to 95%."""
    run = ps.run(
        partial(train, optimizer=optimizer), strategy, workers=WORKERS, engine=ps.Simulated(clusters()[kind]), seed=seed,
        evaluate=digits.evaluate, evaluate_every_s=0.05, until=ps.Until(accuracy=0.95, seconds=MOST_S),
    )  # fmt: skip
    return run.time_to("accuracy", 0.95) or MOST_S


def rows(arguments: argparse.Namespace) -> list[Row]:
    """Waiting and going on, each against lock step."""
    found = []
    for kind, recipe, optimizer in CASES[: 1 if arguments.quick else None]:
        lock, waits, goes = (
            statistics.fmean(one_run(kind, strategy, optimizer, seed) for seed in range(arguments.runs))
            for strategy in (ps.sync_sgd(), recipe(H, overlap=False), recipe(H, overlap=True))
        )
        progress.print(f"{kind}, {recipe.__name__}, {optimizer}: {lock}, {waits}, going on {goes}")
        for overlap, one in ((False, waits), (True, goes)):
            measure = f"{kind}, {optimizer}: {recipe.__name__}({H}, overlap={overlap})"
            found.append(Row(measure, one, "s", "sync_sgd", lock, one / lock, None, None, arguments.runs))
    return found


if __name__ == "__main__":
    given = parser((__doc__ or "").splitlines()[0], runs=6).parse_args()
    report("going on by optimizer: seconds of virtual time to 95%", rows(given), given.json)
