"""A convolutional net on digits, as PyTorch's first example has it: shuffled, with dropout, a test after each epoch."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

EPOCHS, BATCH = 2, 16


def data(train: bool) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    part = slice(320) if train else slice(320, 480)
    return TensorDataset(
        torch.tensor(images[part], dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels[part])
    )


def test(model: nn.Module, loader: DataLoader) -> dict[str, float]:
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += int((model(images).argmax(1) == labels).sum())
    model.train()
    return {"accuracy": right / len(loader.dataset)}


def train(worker):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(72, 10)
    )
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    loader = DataLoader(data(train=True), batch_size=BATCH, shuffle=True)
    held_out = DataLoader(data(train=False), batch_size=64)

    model, optimizer, loader, scheduler = worker.prepare(model, optimizer, loader, scheduler)
    for epoch in worker.epochs(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
        print(f"epoch {epoch}: {test(model, held_out)}")
        scheduler.step()
    return model


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
