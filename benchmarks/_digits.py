"""What simulating costs beyond the steps themselves: 256 virtual workers of examples/digits.py."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from plesio import Simulated, Strategy, Until, async_sgd, run

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import digits

WARM_UP = 100


def digits_overhead(workers: int = 256, steps: int = 5_000, strategy: Strategy | None = None) -> float:
    """The time of a simulated run of `steps` steps, over that of as many in a plain PyTorch loop on one thread.

    Starting the workers counts; what torch imports at first use does not.
    """
    strategy = strategy or async_sgd()
    plain_s(WARM_UP)
    simulated_s(strategy, 1, WARM_UP)
    pure_s = plain_s(steps)
    return simulated_s(strategy, workers, steps) / pure_s


def simulated_s(strategy: Strategy, workers: int, steps: int) -> float:
    """Seconds for a simulated run of `steps` steps."""
    started_s = time.perf_counter()
    done = run(digits.train, strategy, workers=workers, engine=Simulated("uniform"), until=Until(steps=steps))
    assert done.steps == steps
    return time.perf_counter() - started_s


def plain_s(steps: int) -> float:
    """Seconds for as many steps of the example's loop in plain PyTorch: batches, gradients, optimizer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=digits.LEARNING_RATE, momentum=0.9)
        loader = DataLoader(digits.TRAIN, batch_size=digits.BATCH, shuffle=True)
        batches = (batch for _ in itertools.count() for batch in loader)
        started_s = time.perf_counter()
        for images, labels in itertools.islice(batches, steps):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()
        return time.perf_counter() - started_s
    finally:
        torch.set_num_threads(before)
