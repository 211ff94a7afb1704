"""Federated rounds on MNIST: rounds to 97%, what the machinery costs, bytes, and what it gains not to wait.

    python benchmarks/federated.py --json federated.json

The 2NN of McMahan et al. 2017 (784-200-200-10, 199,210 parameters), 100 clients, 10 a round, batches of 10, SGD with a rate of
.1. Gradients are real; workers are simulated where only rounds or virtual time are asked for.
"""

from __future__ import annotations

import resource
import time
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import _federated_own
import _federated_secure
import plesio as ps
from _federated_day import a_day
from _federated_robust import robust
from _federated_scaffold import scaffold_rows
from _mnist import load
from _report import Row, meets, parser, progress, report, row
from plesio.cluster import Cluster, Constant, Group, LogNormal

CLIENTS, PER_ROUND, BATCH, STEP_S = 100, 10, 10, 0.01
NAME, IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = load()
DATA = TensorDataset(IMAGES, LABELS)


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


@cache
def split(kind: str, clients: int = CLIENTS) -> Any:
    if kind == "one each":
        return ps.splits.iid(clients, clients)
    return ps.splits.iid(LABELS, clients) if kind == "iid" else ps.splits.shards(LABELS, clients, each=2)


def train(worker: ps.Worker, kind: str, **settings: Any) -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lent = ps.Clients(DATA, split(kind), per_round=PER_ROUND, batch_size=BATCH, **settings)
    model, optimizer, clients = worker.prepare(model, optimizer, lent)
    for client in clients:
        for inputs, labels in client:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def idle(worker: ps.Worker, clients: int, rounds: int, per_round: int | None = None) -> None:
    """Clients of one sample and one step, whose gradient is zero."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.zeros(clients, 1))
    lent = ps.Clients(data, split("one each", clients), per_round=per_round or clients, rounds=rounds, batch_size=1)
    model, optimizer, taken = worker.prepare(model, optimizer, lent)
    for client in taken:
        for _ in client:
            still(model, optimizer)


def still(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    optimizer.step()


def accuracy(model: nn.Module) -> dict[str, float]:
    with torch.no_grad():
        return {"accuracy": float((model(TEST_IMAGES).argmax(1) == TEST_LABELS).float().mean())}


def rounds_to(wanted: float, kind: str, epochs: int, most: int, strategy: ps.Strategy | None = None) -> ps.Run:
    """A run to that accuracy, judged after each round."""
    steps = CLIENTS_STEPS * epochs * PER_ROUND / 2
    run = ps.run(
        partial(train, kind=kind, epochs=epochs, rounds=most),
        strategy or ps.fedavg(),
        workers=2,
        engine=ps.Simulated(Cluster((Group(2, Constant(STEP_S)),))),
        evaluate=accuracy,
        evaluate_every_s=steps * STEP_S,
        until=ps.Until(accuracy=wanted),
    )
    progress.print(f"{kind}, E={epochs}: version {run.version}, {run.summary.history[-1].metrics}")
    return run


CLIENTS_STEPS = len(LABELS) / CLIENTS / BATCH


def overhead(clients: int, rounds: int) -> tuple[float, float]:
    """Milliseconds a round and a client beyond the steps, on two real workers."""
    run = ps.run(partial(idle, clients=clients, rounds=rounds), ps.fedavg(), workers=2)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began_s = time.perf_counter()
    for _ in range(clients * rounds // 2):
        still(model, optimizer)
    beyond_s = run.summary.wall_s - (time.perf_counter() - began_s)
    return 1e3 * beyond_s / rounds, 1e3 * beyond_s / rounds / clients


def waiting(strategy: ps.Strategy, wanted: float, most: int, seed: int) -> float:
    """Virtual seconds to that accuracy on 10 slots, where clients' speeds are lognormal (sigma 1)."""
    run = ps.run(
        partial(train, kind="iid", epochs=1, rounds=most, speeds=LogNormal(STEP_S, 1.0)),
        strategy,
        workers=PER_ROUND,
        seed=seed,
        engine=ps.Simulated(Cluster((Group(PER_ROUND, Constant(STEP_S)),))),
        evaluate=accuracy,
        evaluate_every_s=0.25,
        until=ps.Until(accuracy=wanted),
    )
    progress.print(f"{strategy.name}, seed {seed}: {run.summary.wall_s:.1f} s, {run.summary.history[-1].metrics}")
    return run.summary.wall_s


def private(noise: float) -> list[Row]:
    """Accuracy after 60 rounds of 50 among 500 clients with differential privacy, and the epsilon that it takes."""
    settings = ps.Privacy(clip=1.0, noise=noise, delta=1e-3, per_round=50)
    train = partial(train_private, rounds=60)
    run = ps.run(
        train, ps.fedavg(privacy=settings), workers=2, seed=7, engine=ps.Simulated("uniform"), evaluate=accuracy,
        evaluate_every_s=1e6,
    )  # fmt: skip
    (epsilon,) = [one.metrics["epsilon"] for one in run.logged if "epsilon" in one.metrics]
    share = run.summary.history[-1].metrics["accuracy"]
    name = f"private, noise {noise:g}: accuracy; beside it epsilon at delta .001"
    progress.print(f"{name}: {share:.3f}, {epsilon:.2f}")
    return [Row(name, share, "", "epsilon", epsilon, None, None, None, 1)]


def train_private(worker: ps.Worker, rounds: int) -> None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lent = ps.Clients(DATA, split("iid", 500), per_round=50, rounds=rounds, batch_size=BATCH)
    model, optimizer, clients = worker.prepare(model, optimizer, lent)
    for client in clients:
        for inputs, labels in client:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


def many(clients: int, slots: int) -> float:
    """Megabytes of a simulated run of so many clients with one sample each, beyond what was there before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ps.run(
        partial(idle, clients=clients, rounds=2, per_round=500),
        ps.fedavg(),
        workers=slots,
        engine=ps.Simulated("uniform"),
    )
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """All rows."""
    arguments = parser("Federated rounds on MNIST.", runs=3).parse_args()
    quick, runs = arguments.quick, 1 if arguments.quick else arguments.runs
    torch.set_num_threads(1)
    wanted = (0.5 if quick else 0.97) if NAME == "MNIST" else 0.8
    few, lots = many(500, 100), many(1_000 if quick else 10_000, 100)  # the second on top of the first
    rows: list[Row] = [
        Row("10,000 clients on 100 slots: memory", few + lots, "MB", "500 clients", few, 1 + lots / few, None, None, 1)
    ]
    idle_rounds = [overhead(10, 20 if quick else 200) for _ in range(runs)]
    rows.append(row("a round of 10 idle clients, beyond steps", [one[0] for one in idle_rounds], "ms", target="<= 6"))
    idle_clients = [overhead(100, 4 if quick else 40) for _ in range(runs)]
    rows.append(row("an idle client, 100 a round, beyond steps", [one[1] for one in idle_clients], "ms", target="<= 1"))
    for epochs, bar in ((1, 75), (5, 35)):
        run = rounds_to(wanted, "iid", epochs, 5 if quick else 100)
        target = None if quick or NAME != "MNIST" else f"<= {bar}"
        there = run.summary.history[-1].metrics["accuracy"] >= wanted
        met = None if target is None else there and meets(run.version, target)
        rows.append(
            Row(f"{NAME}, IID, E={epochs}: rounds to {wanted:.0%}", run.version, "", None, None, None, target, met, 1)
        )
        if epochs == 1:
            turns = sum(one.turns for one in run.summary.clients)
            theirs, ours = 2 * turns * run.summary.plain_bytes / 1e6, run.summary.bytes / 1e6
            rows.append(
                Row(
                    "its bytes: of clients on devices of their own",
                    theirs,
                    "MB",
                    "workers",
                    ours,
                    theirs / ours,
                    None,
                    None,
                    1,
                )
            )
    shards = rounds_to(wanted, "shards", 1, 5 if quick else 100)
    share = shards.summary.history[-1].metrics["accuracy"]
    rows.append(
        Row(f"two labels a client: accuracy after {shards.version} rounds", share, "", None, None, None, None, None, 1)
    )
    for noise in () if quick else (0.3, 0.6, 1.0):
        rows += private(noise)
    rows += scaffold_rows(quick)
    rows += a_day(ps.fedavg(), hours=0.5 if quick else 24.0)
    goal = 0.5 if quick else 0.95 if NAME == "MNIST" else 0.78
    slow = [waiting(ps.fedavg(), goal, 5 if quick else 100, seed) for seed in range(runs)]
    fast = [waiting(ps.fedbuff(10), goal, 5 if quick else 100, seed) for seed in range(runs)]
    rows.append(
        row(f"fedavg, virtual time to {goal:.0%}, speeds lognormal", slow, "s", against="fedbuff(10)", against_values=fast,
            target=">= 2")
    )  # fmt: skip
    rows += _federated_own.rows(quick)
    rows += robust(quick, runs)
    rows += _federated_secure.rows(runs, 5 if quick else 20)
    report(f"Federated rounds on {NAME}", rows, arguments.json)


if __name__ == "__main__":
    main()
