"""SCAFFOLD against federated averaging where each client has one label, and against a plain loop.

    python benchmarks/_federated_scaffold.py

Logistic regression on 6,000 images of MNIST: 100 clients of one label each, 20 of them a round, five local epochs of five steps.
Each strategy has the best rate of a few.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from math import inf

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from _mnist import load
from _report import Row, progress
from plesio.cluster import Cluster, Constant, Group
from plesio.worker.clients.turn import Client

CLIENTS, PER_ROUND, EPOCHS, BATCH, SAMPLES = 100, 20, 5, 12, 6_000
STEP_S, WORKERS = 0.01, 2
ROUND_S = PER_ROUND / WORKERS * EPOCHS * SAMPLES / CLIENTS / BATCH * STEP_S
_, IMAGES, LABELS, *TEST = load()
TEST_IMAGES, TEST_LABELS = (one[:2_000] for one in TEST)
DATA, LABELS = TensorDataset(IMAGES[:SAMPLES], LABELS[:SAMPLES]), LABELS[:SAMPLES]
SPLIT = ps.splits.shards(LABELS, CLIENTS, each=1)


def lent(rounds: int) -> ps.Clients:
    return ps.Clients(DATA, SPLIT, per_round=PER_ROUND, rounds=rounds, epochs=EPOCHS, batch_size=BATCH, state="keep")


def train(worker: ps.Worker, lr: float, rounds: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(784, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model, optimizer, clients = worker.prepare(model, optimizer, lent(rounds))
    for client in clients:
        for inputs, labels in client:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def accuracy(model: nn.Module) -> dict[str, float]:
    with torch.no_grad():
        return {"accuracy": float((model(TEST_IMAGES).argmax(1) == TEST_LABELS).float().mean())}


def rounds_to(goal: float, strategy: ps.Strategy, lr: float, most: int) -> float:
    """Rounds to that accuracy; infinity if `most` do not get there."""
    run = ps.run(
        partial(train, lr=lr, rounds=most),
        strategy,
        workers=WORKERS,
        engine=ps.Simulated(Cluster((Group(WORKERS, Constant(STEP_S)),))),
        evaluate=accuracy,
        evaluate_every_s=ROUND_S,
        until=ps.Until(accuracy=goal),
    )
    share = run.summary.history[-1].metrics["accuracy"]
    progress.print(f"{strategy.name}, rate {lr:g}: {share:.1%} after {run.version} rounds")
    return run.version if share >= goal else inf


def plain(rounds: int, lr: float) -> list[torch.Tensor]:
    """The paper's loop, option II."""
    torch.manual_seed(0)
    model, clients = nn.Linear(784, 10), lent(rounds)
    x = [one.detach().clone() for one in model.parameters()]
    c = [torch.zeros_like(one) for one in x]
    own = dict.fromkeys(range(CLIENTS), c)
    for round in range(rounds):
        moved, changed = [torch.zeros_like(one) for one in x], [torch.zeros_like(one) for one in x]
        for number in clients.drawn(0, round):
            y = [one.clone().requires_grad_() for one in x]
            steps = 0
            for inputs, labels in Client(clients, number, round, 0, count().__next__):
                slopes = torch.autograd.grad(cross_entropy(nn.functional.linear(inputs, *y), labels), y)
                for one, slope, mine, all_of_them in zip(y, slopes, own[number], c, strict=True):
                    one.data -= lr * (slope - mine + all_of_them)
                steps += 1
            new = [
                mine - o + (a - b.detach()) / (steps * lr) for mine, o, a, b in zip(own[number], c, x, y, strict=True)
            ]
            for at, one in enumerate(new):
                moved[at] += y[at].detach() - x[at]
                changed[at] += one - own[number][at]
            own[number] = new
        x = [one + delta / PER_ROUND for one, delta in zip(x, moved, strict=True)]
        c = [one + delta / CLIENTS for one, delta in zip(c, changed, strict=True)]
    return x


def difference(rounds: int = 5, lr: float = 0.1) -> float:
    """The largest between a run's parameters and the plain loop's."""
    run = ps.run(partial(train, lr=lr, rounds=rounds), ps.scaffold(), workers=WORKERS, engine=ps.Simulated("uniform"))
    both = zip(run.state_dict.values(), plain(rounds, lr), strict=True)
    return max(float((one - other).abs().max()) for one, other in both)


def scaffold_rows(quick: bool = False) -> list[Row]:
    """Rounds to an accuracy, and how far five rounds are from a plain loop."""
    goal, most, rates = (0.5, 10, [0.1]) if quick else (0.82, 80, [0.03, 0.1])
    best = {name: min(rounds_to(goal, strategy, lr, most) for lr in rates) for name, strategy in STRATEGIES.items()}
    apart = difference()
    progress.print(f"scaffold and a plain loop: {apart:.1e}")
    ratio = best["fedavg"] / best["scaffold"]
    measure = f"one label a client: rounds of scaffold to {goal:.0%}"
    return [
        Row(measure, best["scaffold"], "", "fedavg", best["fedavg"], ratio, None, None, 1),
        Row("scaffold: difference to a plain loop", apart, "", None, None, None, "<= 1e-6", apart <= 1e-6, 1),
    ]


STRATEGIES = {"fedavg": ps.fedavg(), "scaffold": ps.scaffold()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*scaffold_rows(), sep="\n")
