"""What is a client's own: FedBN where clients' images look different, FedPer where they have few labels, and many states.

FedBN (Li et al. 2021, arXiv 2102.07623) shares all but batch norm, FedPer (Arivazhagan et al. 2019, arXiv 1912.00818) all but the
last layer. Each is held against `fedavg`, by the mean accuracy of 100 clients on what they hold out. The plain loops beside are
written anew here, in torch alone; only who is drawn, and the order of the batches, is plesio's.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from _mnist import load
from _report import Row, progress
from plesio.worker.clients.turn import Client

CLIENTS, PER_ROUND, SAMPLES, BATCH, RATE = 100, 10, 100, 10, 0.05
Shared = Callable[[str], bool]
POINTS = 0.5
"""How far plesio's margin may be from that of the plain loop, in points."""


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(784), nn.Linear(784, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))


def but_norm(name: str) -> bool:
    return name[0] not in "02"


def but_head(name: str) -> bool:
    return name[0] != "4"


def everything(name: str) -> bool:
    return True


@cache
def skewed(kind: str) -> tuple[TensorDataset, Any]:
    """MNIST's first images, and whose they are: with two labels a client; or, of all labels, each client's of a contrast and a
    brightness of its own."""
    _, images, labels, _, _ = load()
    images, labels = images[: CLIENTS * SAMPLES].clone(), labels[: CLIENTS * SAMPLES]
    if kind == "labels":
        return TensorDataset(images, labels), ps.splits.shards(labels, CLIENTS, each=2)
    split = ps.splits.iid(len(labels), CLIENTS)
    generator = torch.Generator().manual_seed(1)
    for part in split:
        contrast, brightness = torch.rand(2, generator=generator).tolist()
        images[part] = images[part] * (0.5 + contrast) + brightness
    return TensorDataset(images, labels), split


def described(kind: str, rounds: int, state: str | None = None) -> ps.Clients:
    data, split = skewed(kind)
    return ps.Clients(data, split, per_round=PER_ROUND, rounds=rounds, batch_size=BATCH, held_out=0.3, state=state)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer.zero_grad()
    cross_entropy(model(inputs), labels).backward()
    optimizer.step()


def accuracy(model: nn.Module, batches: Iterator[Any]) -> dict[str, float]:
    right, all_of_them = 0, 0
    for inputs, labels in batches:
        right += int((model(inputs).argmax(1) == labels).sum())
        all_of_them += len(labels)
    return {"accuracy": right / all_of_them}


def train(worker: ps.Worker, kind: str, rounds: int, shared: Shared) -> float | None:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    lent = described(kind, rounds, "keep")
    model, optimizer, clients = worker.prepare(model, optimizer, lent, share=lambda name, _: shared(name))
    for client in clients:
        for inputs, labels in client:
            step(model, optimizer, inputs, labels)
    if worker.rank:
        return None
    found = clients.evaluate(accuracy)
    return sum(one["accuracy"] for one in found.values()) / len(found)


def ours(kind: str, rounds: int, shared: Shared) -> float:
    run = ps.run(
        partial(train, kind=kind, rounds=rounds, shared=shared),
        workers=2,
        strategy=ps.fedavg(),
        engine=ps.Simulated("uniform"),
    )
    return 100 * float(run.returned[0])


def plain(kind: str, rounds: int, shared: Shared) -> float:
    """The same in a loop of torch's: what is shared is averaged by samples, the rest is kept for each client."""
    lent, model = described(kind, rounds), build()
    begin = {name: one.clone() for name, one in model.state_dict().items()}
    body = {name: one for name, one in begin.items() if shared(name)}
    own: dict[int, dict[str, torch.Tensor]] = {}
    for round in range(rounds):
        sums, weight = {name: torch.zeros_like(one, dtype=torch.float64) for name, one in body.items()}, 0
        for number in lent.drawn(0, round):
            model.load_state_dict(begin | own.get(number, {}) | body)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            samples = 0
            for inputs, labels in Client(lent, number, round, 0, count().__next__):
                step(model, optimizer, inputs, labels)
                samples += len(labels)
            now = {name: one.clone() for name, one in model.state_dict().items()}
            own[number] = {name: one for name, one in now.items() if not shared(name)}
            for name, total in sums.items():
                total += samples * now[name].double()
            weight += samples
        body = {name: (total / weight).to(body[name].dtype) for name, total in sums.items()}
    model.eval()
    found = []
    for number in range(CLIENTS):
        model.load_state_dict(begin | own.get(number, {}) | body)
        with torch.no_grad():
            found.append(accuracy(model, Client(lent, number, 0, 0, count().__next__).held_out())["accuracy"])
    return 100 * sum(found) / CLIENTS


def margins(rounds: int) -> list[Row]:
    """How many points ahead of `fedavg` each is, and by the plain loops."""
    rows = []
    for name, kind, shared in (
        ("FedBN, images unlike", "images", but_norm),
        ("FedPer, two labels", "labels", but_head),
    ):
        figures = [[way(kind, rounds, what) for what in (shared, everything)] for way in (ours, plain)]
        (mine, fedavg), (theirs, theirs_fedavg) = figures
        progress.print(f"{name}: {mine:.2f} ({fedavg:.2f} by fedavg); plain loops {theirs:.2f} ({theirs_fedavg:.2f})")
        margin, bar = mine - fedavg, theirs - theirs_fedavg
        met = margin > 0 and abs(margin - bar) <= POINTS
        rows.append(
            Row(
                f"{name}: mean accuracy by client, ahead of fedavg",
                margin,
                "points",
                "plain loops",
                bar,
                None,
                "the same to .5",
                met,
                1,
            )
        )
    return rows


@cache
def one_each(clients: int) -> tuple[TensorDataset, Any]:
    """The same for all workers, which are in one process."""
    data = TensorDataset(torch.zeros(1, 784).expand(clients, -1), torch.zeros(clients, dtype=torch.int64))
    return data, ps.splits.iid(clients, clients)


def keeps(worker: ps.Worker, clients: int, rounds: int) -> None:
    """Clients of one sample, each with a head of its own and some state."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    data, split = one_each(clients)
    lent = ps.Clients(data, split, per_round=500, rounds=rounds, batch_size=1, state="keep")
    model, optimizer, taken = worker.prepare(model, optimizer, lent, share=["1", "2", "0"])
    model.eval()
    for client in taken:
        client.state["turns"] = client.state.get("turns", 0) + 1
        for inputs, labels in client:
            step(model, optimizer, inputs, labels)


def memory(clients: int, rounds: int) -> float:
    """Megabytes of a simulated run of so many clients on 100 slots, beyond what there was."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ps.run(partial(keeps, clients=clients, rounds=rounds), ps.fedavg(), workers=100, engine=ps.Simulated("uniform"))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def rows(quick: bool) -> list[Row]:
    """All of them."""
    few, lots = memory(500, 2), memory(1000 if quick else 10_000, 2 if quick else 20)
    name = "10,000 clients that keep a head of their own, 100 slots: memory"
    return [
        *margins(5 if quick else 30),
        Row(name, few + lots, "MB", "500 clients", few, 1 + lots / few, "<= 1.2", 1 + lots / few <= 1.2, 1),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for one in rows(quick=False):
        print(one)
