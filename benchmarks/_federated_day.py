"""A day of 10,000 phones: each charges at night in its own time zone, some are slow, and some drop out of a turn.

    python benchmarks/_federated_day.py

The phones hold six images of MNIST each. A hundred of those that charge take part in a round. Their speeds are lognormal.
"""

from __future__ import annotations

import time
from collections import Counter

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from _mnist import load
from _report import Row, progress
from plesio.cluster import Cluster, Constant, Group, LogNormal

SLOTS, ZONES, DAY_S = 100, 24, 86_400.0
NIGHT = range(1, 5)  # the hours at which a phone is charged and idle
_, IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = load()
DATA = TensorDataset(IMAGES, LABELS)
BEGUN_H: dict[int, int] = {}
"""The hour at which each round began."""
TURNS: Counter[tuple[int, int]] = Counter()
"""By zone, and by the hour at which the round began. All workers of a simulation are in this process."""


def charges(phone: int, round: int, time_s: float) -> bool:
    """Phone k lives in zone k mod 24, where it is k hours later."""
    hour = int(time_s / 3600)
    BEGUN_H[round] = hour % 24
    return (hour + phone) % ZONES in NIGHT


PHONES = ps.Clients(
    DATA, ps.splits.shards(LABELS, 10_000, each=2), per_round=SLOTS, rounds=10_000, epochs=3, batch_size=3,
    available=charges, speeds=LogNormal(20.0, 1.0), dropout=0.1,
)  # fmt: skip


def train(worker: ps.Worker) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, clients = worker.prepare(model, optimizer, PHONES)
    for client in clients:
        TURNS[client.id % ZONES, BEGUN_H[client.round]] += 1
        for inputs, labels in client:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def accuracy(model: nn.Module) -> dict[str, float]:
    with torch.no_grad():
        return {"accuracy": float((model(TEST_IMAGES).argmax(1) == TEST_LABELS).float().mean())}


def table() -> str:
    """Turns of every third zone, by two hours."""
    lines = ["zone    " + "".join(f"{hour:>5}" for hour in range(0, 24, 2))]
    for zone in range(0, ZONES, 3):
        turns = (TURNS[zone, hour] + TURNS[zone, hour + 1] for hour in range(0, 24, 2))
        lines.append(f"UTC+{zone:<4}" + "".join(f"{one:>5}" for one in turns))
    return "\n".join(lines)


def a_day(strategy: ps.Strategy, hours: float = 24.0) -> list[Row]:
    """Minutes of this machine for a day, and what came of it."""
    TURNS.clear()
    began_s = time.perf_counter()
    run = ps.run(
        train,
        strategy,
        workers=SLOTS,
        engine=ps.Simulated(Cluster((Group(SLOTS, Constant(20.0)),))),
        until=ps.Until(seconds=hours * 3600.0),
        timeout_s=DAY_S,
        evaluate=accuracy,
        evaluate_every_s=3600.0,
    )
    minutes = (time.perf_counter() - began_s) / 60
    clients, share = run.summary.clients, run.summary.history[-1].metrics["accuracy"]
    turns, lost = sum(one.turns for one in clients), sum(one.left_out for one in clients)
    progress.print(table())
    progress.print(
        f"{strategy.name}: {run.version} versions, {len(clients):,} phones took {turns:,} turns, {lost:,} of them dropped "
        f"out; accuracy {share:.1%}; {minutes:.1f} minutes of this machine"
    )
    name = f"a day of 10,000 phones, {strategy.name}: minutes; beside it the accuracy"
    return [Row(name, minutes, "min", "accuracy", share, None, "< 5", minutes < 5, 1)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    a_day(ps.fedavg())
