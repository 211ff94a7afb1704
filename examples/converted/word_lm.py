"""A recurrent language model: its state goes on from batch to batch, and the weights are updated by hand."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

EPOCHS, BATCH, LENGTH, RATE = 2, 8, 12, 2.0


class Words(nn.Module):
    def __init__(self, words: int, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(words, width), nn.Dropout(0.2)
        self.recurrent, self.out = nn.LSTM(width, width), nn.Linear(width, words)

    def forward(self, words: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None):
        found, state = self.recurrent(self.dropout(self.embedding(words)), state)
        return self.out(self.dropout(found)), state


def data() -> TensorDataset:
    """The text in `BATCH` columns, cut into windows of `LENGTH`, and each window's next words."""
    words = torch.tensor([ord(letter) % 32 for letter in torch.nn.Module.__doc__ or ""])
    columns = words[: (len(words) - 1) // BATCH * BATCH].view(BATCH, -1).T
    windows = (len(columns) - 1) // LENGTH
    return TensorDataset(
        columns[: windows * LENGTH].view(windows, LENGTH, BATCH),
        columns[1 : windows * LENGTH + 1].view(windows, LENGTH, BATCH),
    )


def train(worker):
    torch.manual_seed(0)
    model = Words(32)
    loader = DataLoader(data(), batch_size=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    loss = float("nan")  # a pass may be empty
    for epoch in range(EPOCHS):
        state = None
        for words, following in loader:
            model.zero_grad()
            guesses, state = model(words, state)
            state = tuple(one.detach() for one in state)
            loss = cross_entropy(guesses.flatten(0, 1), following.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss:.3f}")
    return model


if __name__ == "__main__":
    ps.run(train, "sync_sgd", workers=2)
