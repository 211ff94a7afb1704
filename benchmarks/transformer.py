"""Where AdamW under `async_sgd()` is more than 1% behind `sync_sgd`: a small transformer, with and without a warm-up of the rate.

    python benchmarks/transformer.py --json FILE [--quick]

Two layers, 32 wide, predict the next of 32 characters of the standard library's source. 8 and 32 simulated workers, a quarter of
which take five times as long; equal samples, the same rate, a cosine to 0. `--runs` is the number of seeds. The bar is 1% of the
validation loss, with 8 workers and a warm-up.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import collections
import inspect
import itertools
import math
import statistics
import typing
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps
from _report import Row, parser, progress, report

WORKERS, BATCH, LENGTH, WIDTH, LETTERS = (8, 32), 4, 32, 32, 32
RATE, WARM_UP = 0.012, 0.1
BEHIND_MAX = "<= 1"


def text() -> torch.Tensor:
    """Source in the most frequent characters; the last stands for all others."""
    source = "".join(map(inspect.getsource, (argparse, asyncio.base_events, typing, collections)))
    usual = [letter for letter, _ in collections.Counter(source).most_common(LETTERS - 1)]
    places = {letter: place for place, letter in enumerate(usual)}
    return torch.tensor([places.get(letter, LETTERS - 1) for letter in source])


TEXT = text()
SPLIT = len(TEXT) * 9 // 10


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        return self.head(self.body(self.letters(letters) + self.places.weight, mask=mask, is_causal=True))


def loss_of(model: nn.Module, starts: torch.Tensor) -> torch.Tensor:
    pieces = torch.stack([TEXT[start : start + LENGTH + 1] for start in starts.tolist()])
    return cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def rate(batches: int, warm_up: float, step: int) -> float:
    """The share of the rate: a line up to 1, then a cosine to 0; `step` counts batches of all workers."""
    done = step / batches
    if done < warm_up:
        return done / warm_up
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - warm_up) / (1 - warm_up))))


def train(worker: ps.Worker, batches: int, warm_up: float, seed: int) -> None:
    """The batches are shared out; the rate goes by how many the whole run has done."""
    torch.manual_seed(seed)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    model, optimizer = worker.prepare(model, optimizer)
    for step in worker.steps(batches):
        optimizer.param_groups[0]["lr"] = RATE * rate(batches, warm_up, step)
        drawn = torch.Generator().manual_seed(1_000_003 * (seed + 1) + step)
        optimizer.zero_grad()
        loss_of(model, torch.randint(SPLIT - LENGTH - 1, (BATCH,), generator=drawn)).backward()
        optimizer.step()


def validation(strategy: ps.Strategy, workers: int, batches: int, warm_up: float, seed: int) -> float:
    """Nats a character at the end, on the last tenth of the text."""
    cluster = ps.Cluster.preset("two-speeds", workers, 0.02)
    work = partial(train, batches=batches, warm_up=warm_up, seed=seed)
    run = ps.run(work, strategy, workers=workers, engine=ps.Simulated(cluster), seed=seed)
    model = Transformer()
    model.load_state_dict(run.state_dict)
    with torch.no_grad():
        return loss_of(model.eval(), torch.arange(SPLIT, len(TEXT) - LENGTH - 1, LENGTH)).item()


def rows(arguments: argparse.Namespace) -> list[Row]:
    """How many per cent `async_sgd()` is behind."""
    batches = 200 if arguments.quick else 1_600
    found = []
    cases = itertools.product(WORKERS, (("a warm-up over a tenth of the run", WARM_UP), ("no warm-up", 0.0)))
    for workers, (words, warm_up) in cases:
        losses = [
            [validation(strategy, workers, batches, warm_up, seed) for seed in range(arguments.runs)]
            for strategy in (ps.sync_sgd(), ps.async_sgd())
        ]
        progress.print(f"{workers} workers, {words}: {losses}")
        behind = 100 * statistics.fmean(late / good - 1 for good, late in zip(*losses, strict=True))
        target = BEHIND_MAX if warm_up and workers == WORKERS[0] else None
        label = f"AdamW, {workers} workers, {words}: async_sgd() behind sync_sgd"
        met = behind <= 1 if target else None
        found.append(Row(label, behind, "%", None, None, None, target, met, arguments.runs))
    return found


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=3).parse_args()
    report("a small transformer with AdamW", rows(given), given.json)
