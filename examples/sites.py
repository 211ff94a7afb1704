"""One site of a federated run: its data stay here, and what its model moved goes to the head, once a round.

    export PLESIO_TOKEN=$(openssl rand -hex 32)                       # the same for all
    plesio certs certs --host 127.0.0.1                               # each site gets a folder in certs/
    plesio serve --strategy fedavg --workers 3 --listen 127.0.0.1:7070 --certs certs/127.0.0.1
    PLESIO_JOIN=127.0.0.1:7070 PLESIO_CERTS=certs/127.0.0.1 python examples/sites.py 0     # and 1, and 2

A site that was away is missing from the rounds made meanwhile, and goes on from the current version.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import plesio as ps

ROUNDS, EPOCHS, BATCH = 20, 2, 10


def own_data(site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What lies on the disk of this site; here every third of the digits."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images[site:1400:3], dtype=torch.float32) / 16, torch.tensor(labels[site:1400:3])


def train(worker: ps.Worker, site: int) -> None:
    inputs, labels = own_data(site)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = worker.prepare(model, optimizer)
    moved = sum(one.numel() * one.element_size() for one in model.state_dict().values())
    print(
        f"site {site}: {len(labels)} samples stay here; {moved} bytes leave it a round: {', '.join(model.state_dict())}"
    )
    while worker.version < ROUNDS:
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(labels)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(model(inputs[batch]), labels[batch]).backward()
                optimizer.step()
        worker.contribute(samples=len(labels))


def main() -> None:
    """Take part as the site whose number is told."""
    with ps.join() as worker:
        train(worker, int(sys.argv[1]))


if __name__ == "__main__":
    main()
