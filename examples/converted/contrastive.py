"""A contrastive loss: each image's two views are told from all others of the batch, so the batch is in the loss."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, Dataset

import plesio as ps

EPOCHS, BATCH, TEMPERATURE = 2, 32, 0.2


class Views(Dataset):
    """Two views of each image, each with a noise and a mask of its own."""

    def __init__(self) -> None:
        self.images = torch.tensor(load_digits().data[:320], dtype=torch.float32) / 16

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        return tuple((image + 0.1 * torch.randn(64)) * (torch.rand(64) > 0.2) for _ in range(2))


def info_nce(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    found = normalize(torch.cat([first, second]), dim=1)
    alike = (found @ found.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return cross_entropy(alike, torch.arange(len(found)).roll(len(first)))


def train(worker):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
    loader = DataLoader(Views(), batch_size=BATCH, shuffle=True, drop_last=True)

    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    loss = float("nan")  # a pass may be empty
    for epoch in worker.epochs(EPOCHS):
        for first, second in loader:
            optimizer.zero_grad()
            loss = info_nce(model(first), model(second))
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss:.3f}")
    return model


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
