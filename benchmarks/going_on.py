"""What going on while an answer travels costs with momentum: the digits, 8 simulated workers.

    python benchmarks/going_on.py --json going_on.json

On the slow link and the far machines of `choose.py`, with and without `overlap`. `--runs` is the number of seeds; the mean is
taken. Seconds are virtual, to 95% accuracy, at most 10; and the loss after 6 rounds, where there are rounds.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from _report import Row, parser, progress, report
from choose import WORKERS, clusters, digits

OPTIMIZERS = {
    "SGD at 0.2, momentum 0.9": partial(torch.optim.SGD, lr=0.2, momentum=0.9),
    "SGD at 0.05, momentum 0.9": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "AdamW at 0.01": partial(torch.optim.AdamW, lr=0.01),
}
H, ROUNDS, MOST_S = 16, 6, 10.0
CASES = [("slow link", ps.local_sgd, one) for one in OPTIMIZERS]
CASES += [("cross-region", recipe, "SGD at 0.2, momentum 0.9") for recipe in (ps.local_sgd, ps.async_local_sgd)]


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


def one_run(kind: str, strategy: ps.Strategy, optimizer: str, seed: int) -> tuple[float, float]:
    """Seconds to 95%, and the loss after so many rounds."""
    run = ps.run(
        partial(train, optimizer=optimizer), strategy, workers=WORKERS, engine=ps.Simulated(clusters()[kind]), seed=seed,
        evaluate=digits.evaluate, evaluate_every_s=0.05, until=ps.Until(seconds=3.0 if kind == "slow link" else 5.0),
    )  # fmt: skip
    loss = next((one.metrics["loss"] for one in run.history if one.version >= ROUNDS), float("nan"))
    return run.time_to("accuracy", 0.95) or MOST_S, loss


def rows(arguments: argparse.Namespace) -> list[Row]:
    """Going on against waiting."""
    found = []
    for kind, recipe, optimizer in CASES[: 1 if arguments.quick else None]:
        waits, goes = (
            [one_run(kind, recipe(H, overlap=overlap), optimizer, seed) for seed in range(arguments.runs)]
            for overlap in (False, True)
        )
        progress.print(f"{kind}, {recipe.__name__}, {optimizer}: {waits}, going on {goes}")
        for place, (words, unit) in enumerate((("to 95%", "s"), (f"loss after {ROUNDS} rounds", "nats"))):
            if place and not recipe(H).gather.in_rounds:
                continue
            one, other = (statistics.fmean(each[place] for each in runs) for runs in (goes, waits))
            measure = f"{kind}: {recipe.__name__}({H}), {optimizer}, {words}"
            found.append(Row(measure, one, unit, "overlap=False", other, one / other, None, None, arguments.runs))
    return found


if __name__ == "__main__":
    given = parser((__doc__ or "").splitlines()[0], runs=6).parse_args()
    report("going on with and without momentum", rows(given), given.json)
