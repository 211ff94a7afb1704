"""Handwritten digits: a small network on scikit-learn's 1,797 images of 8 x 8 pixels.

    plesio compare examples/digits.py --workers 4 --slow 0:10 --pace 0.02 --until accuracy=0.95
    python examples/digits.py

The learning rate was tuned for `sync_sgd` with 4 workers, and every strategy gets the same one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

EPOCHS = 1000  # more than anyone waits for: the run ends at its target, or when its time is up
BATCH = 32
LEARNING_RATE = 0.2


def data() -> tuple[TensorDataset, TensorDataset]:
    """1,437 images to train on and 360 to test with, drawn at random (the last ones are by other writers)."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=360, stratify=labels, random_state=0)
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in split)
    return TensorDataset(train_x.float(), train_y), TensorDataset(test_x.float(), test_y)


TRAIN, TEST = data()


def train(worker: ps.Worker) -> None:
    """What every worker does: an ordinary PyTorch loop, until it is stopped."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    loader = DataLoader(TRAIN, batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for images, labels in loader:
            with worker.step():  # where `first_of` may call a late worker off; other strategies need no such mark
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()  # the exchange happens here
                worker.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Loss and accuracy on the images nobody trains on."""
    images, labels = TEST.tensors
    scores = model(images)
    return {
        "accuracy": (scores.argmax(1) == labels).float().mean().item(),
        "loss": F.cross_entropy(scores, labels).item(),
    }


if __name__ == "__main__":
    run = ps.run(
        train,
        ps.async_sgd(),
        workers=4,
        evaluate=evaluate,
        evaluate_every_s=0.1,
        until=ps.Until(accuracy=0.95, seconds=30),
    )
    print(run)
