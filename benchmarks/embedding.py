"""What the default of `async_sgd()` does to a model of which most rows hardly move.

    python benchmarks/embedding.py --json embedding.json

A bag of 8 of 2,000 items, some much more popular than others, is told apart by the mean of the items' vectors: an
EmbeddingBag and a linear layer, SGD with momentum .9, 4 workers, at several learning rates. The items are drawn (there is a
true vector for each), the gradients are real, the workers are simulated, so that anybody gets the same numbers.
`async_sgd()` damps an element by how far its parameter moved, measured by how far all do on average: here almost all rows
stand still, and the popular ones are damped the most. Held against `sync_sgd` at the same rate, on equal samples.
"""

from __future__ import annotations

import statistics
from functools import partial

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from _report import Row, parser, progress, report

ITEMS, BAG, WIDTH = 2000, 8, 16
TRAINING, TEST = 10_000, 2_000
BATCH, EPOCHS, WORKERS = 32, 8, 4
RATES = (0.5, 2.0, 4.0, 8.0, 16.0)
STRATEGIES = (ps.sync_sgd(), ps.async_sgd(), ps.async_sgd("plain"))

Data = tuple[torch.Tensor, torch.Tensor]


class Bags(nn.Module):
    """The mean of the items' vectors, and a line through it."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean")
        self.line = nn.Linear(WIDTH, 1)

    def forward(self, bags: torch.Tensor) -> torch.Tensor:
        """The logit of each bag."""
        logits: torch.Tensor = self.line(self.items(bags)).squeeze(1)
        return logits


def drawn(seed: int) -> tuple[Data, Data]:
    """Bags and which side of a plane their true mean is on: to train with, and to test."""
    source = torch.Generator().manual_seed(seed)
    true, plane = torch.randn(ITEMS, 8, generator=source), torch.randn(8, generator=source)
    bags = (torch.rand(TRAINING + TEST, BAG, generator=source) ** 2 * ITEMS).long()
    sides = (true[bags].mean(1) @ plane > 0).float()
    return (bags[:TRAINING], sides[:TRAINING]), (bags[TRAINING:], sides[TRAINING:])


def train(data: Data, lr: float, epochs: int, worker: ps.Worker) -> None:
    """An ordinary loop over the worker's share of the data."""
    torch.manual_seed(worker.seed)
    model = Bags()
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), loader)
    for _ in range(epochs):
        for bags, sides in loader:
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(bags), sides).backward()
            optimizer.step()


def accuracy(strategy: ps.Strategy, lr: float, epochs: int, seed: int) -> float:
    """Share of the test bags told apart, in %."""
    training, (bags, sides) = drawn(seed)
    loop = partial(train, training, lr, epochs)
    run = ps.run(loop, strategy, workers=WORKERS, seed=seed, engine=ps.Simulated("uniform"))
    model = Bags()
    model.load_state_dict(run.state_dict)
    with torch.no_grad():
        result = 100.0 * float(((model(bags) > 0) == (sides > 0.5)).float().mean())
    progress.print(f"lr {lr:g}, {strategy.name}, seed {seed}: {result:.1f}")
    return result


def main() -> None:
    """Every strategy at every rate."""
    arguments = parser("Accuracy of asynchronous training where most parameters hardly move.", runs=3).parse_args()
    torch.set_num_threads(1)
    rates, epochs, runs = ((2.0,), 1, 1) if arguments.quick else (RATES, EPOCHS, arguments.runs)
    rows: list[Row] = []
    for lr in rates:
        means = [statistics.fmean(accuracy(one, lr, epochs, seed) for seed in range(1, 1 + runs)) for one in STRATEGIES]
        rows += [
            Row(
                measure=f"{name}, lr {lr:g}: test accuracy",
                value=round(mean, 2),
                unit="%",
                against="sync_sgd",
                against_value=round(means[0], 2),
                ratio=mean / means[0],
                target=None,
                met=None,
                runs=runs,
            )
            for name, mean in zip(("sync_sgd", "async_sgd", "async_sgd(plain)"), means, strict=True)
        ]
    title = f"An EmbeddingBag of {ITEMS:,} items, SGD momentum .9, {WORKERS} simulated workers, {epochs} epochs"
    report(title, rows, arguments.json)


if __name__ == "__main__":
    main()
