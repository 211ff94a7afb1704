"""A trainer class as minGPT has one: it draws without end, takes the next batch by hand, and counts its own steps."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler

STEPS, BATCH = 24, 16


class Sums(Dataset):
    """Two digits, and their sum modulo 10."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index // 10, index % 10]), (index // 10 + index % 10) % 10


class Trainer:
    def __init__(self, model: nn.Module, dataset: Dataset) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
        sampler = RandomSampler(dataset, replacement=True, num_samples=int(1e10))
        self.loader = DataLoader(dataset, sampler=sampler, batch_size=BATCH, pin_memory=False)

    def run(self, steps: int) -> None:
        batches = iter(self.loader)
        for _ in range(steps):
            try:
                digits, sums = next(batches)
            except StopIteration:
                batches = iter(self.loader)
                digits, sums = next(batches)
            self.loss = cross_entropy(self.model(digits), sums)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(10, 16), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 10)
    )
    trainer = Trainer(model, Sums())
    trainer.run(STEPS)
    print(f"loss {trainer.loss:.3f}")
    return model


if __name__ == "__main__":
    main()
