"""Two islands of two processes: FSDP2 splits the model within an island, DiLoCo keeps step between them.

    python examples/islands.py

Handwritten digits, as in digits.py, and a network of 110,000 parameters. Each of the four processes holds half of a copy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import plesio as ps
from digits import TEST, TRAIN

EPOCHS = 5


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)
    )


def train(worker: ps.Worker) -> None:
    """What every process does: the same loop for islands of any size."""
    model = build()
    for layer in (model[0], model[3], model[5]):
        fully_shard(layer, mesh=worker.island.mesh)
    fully_shard(model, mesh=worker.island.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    loader = DataLoader(TRAIN, batch_size=32, shuffle=True, drop_last=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for images, labels in loader:  # this process's half of each batch
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()  # every 16th is an exchange
            worker.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    images, labels = TEST.tensors
    return {"accuracy": (model(images).argmax(1) == labels).float().mean().item()}


if __name__ == "__main__":
    run = ps.run(train, ps.diloco(16), workers=2, ranks=2, seed=0, evaluate=evaluate, model=build)
    print(run)
