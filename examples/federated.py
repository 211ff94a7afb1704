"""Federated averaging on scikit-learn's digits: 50 clients that hold two digits each, 10 a round.

plesio run examples/federated.py --strategy fedavg
plesio simulate examples/federated.py --strategy fedbuff
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps

ROUNDS = 60


def data() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def train(worker: ps.Worker) -> None:
    inputs, labels = (part[:1400] for part in data())
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lent = ps.Clients(
        TensorDataset(inputs, labels),
        ps.splits.shards(labels, 50, each=2),
        per_round=10,
        rounds=ROUNDS,
        epochs=5,
        batch_size=10,
    )
    model, optimizer, clients = worker.prepare(model, optimizer, lent)
    for client in clients:
        for batch, wanted in client:
            optimizer.zero_grad()
            loss = cross_entropy(model(batch), wanted)
            loss.backward()
            optimizer.step()
            client.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    inputs, labels = (part[1400:] for part in data())
    with torch.no_grad():
        return {"accuracy": float((model(inputs).argmax(1) == labels).float().mean())}
