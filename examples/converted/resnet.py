"""A small ResNet on digits: OneCycle by batch, a moving average of the weights, and its batch-norm statistics by update_bn."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

EPOCHS, BATCH = 2, 16


def data() -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(
        torch.tensor(images[:320], dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels[:320])
    )


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.body(images)


def train(worker):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        Block(8),
        Block(8),
        nn.AvgPool2d(8),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 10),
    )
    loader = DataLoader(data(), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, epochs=EPOCHS, steps_per_epoch=len(loader))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model, optimizer, loader, scheduler = worker.prepare(model, optimizer, loader, scheduler)
    loss = float("nan")  # a pass may be empty
    for epoch in worker.epochs(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
        print(f"epoch {epoch}: loss {loss:.3f}")
    update_bn(loader, average)
    return model


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
