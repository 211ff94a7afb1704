"""A character model of a Python module: AdamW in groups, warm-up and cosine, clipping, accumulation, bf16, a checkpoint."""

import argparse
import inspect

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

EPOCHS, BATCH, CONTEXT, ACCUMULATE, CHECKPOINT = 2, 8, 16, 2, "char_lm.pt"


def data() -> TensorDataset:
    codes = torch.tensor(list(inspect.getsource(argparse).encode("ascii", "replace"))[: 128 * (CONTEXT + 1)])
    rows = codes.view(-1, CONTEXT + 1)[torch.randperm(128, generator=torch.Generator().manual_seed(1))]
    return TensorDataset(rows[:, :-1], rows[:, 1:])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.dropout = nn.Embedding(128, 32), nn.Dropout(0.1)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 128)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.dropout(self.embed(codes)))[0])


def train(worker):
    torch.manual_seed(0)
    model = Model()
    loader = DataLoader(data(), batch_size=BATCH, shuffle=True)
    decay = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.25, total_iters=4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader) // ACCUMULATE - 4)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], milestones=[4])

    model, optimizer, loader, scheduler = worker.prepare(model, optimizer, loader, scheduler)
    best = float("inf")
    for epoch in range(EPOCHS):
        for number, (inputs, targets) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            (loss / ACCUMULATE).backward()
            if number % ACCUMULATE == ACCUMULATE - 1:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                if worker.rank == 0 and loss.item() < best:
                    best = loss.item()
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, CHECKPOINT)
        print(f"epoch {epoch}: loss {best:.3f}")
    return model


if __name__ == "__main__":
    ps.run(train, "async_sgd", workers=2)
