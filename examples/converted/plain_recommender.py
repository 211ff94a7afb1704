"""A recommender: sparse tables and a dense tower, each with its optimizer, trained from a stream of ratings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

USERS, ITEMS, RATINGS, BATCH = 2000, 500, 640, 16


class Ratings(IterableDataset):
    def __iter__(self):
        source = torch.Generator().manual_seed(1)
        for _ in range(RATINGS):
            user, item = torch.randint(USERS, (), generator=source), torch.randint(ITEMS, (), generator=source)
            yield user, item, float((int(user) + int(item)) % 5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, 8, sparse=True)
        self.items = nn.Embedding(ITEMS, 8, sparse=True)
        self.tower = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.tower(torch.cat([self.users(users), self.items(items)], 1))[:, 0]


def main():
    torch.manual_seed(0)
    model = Model()
    tables = torch.optim.SparseAdam([*model.users.parameters(), *model.items.parameters()], lr=0.01)
    tower = torch.optim.Adam(model.tower.parameters(), lr=0.003)
    loader = DataLoader(Ratings(), batch_size=BATCH)

    for users, items, ratings in loader:
        loss = (model(users, items) - ratings.float()).square().mean()
        tables.zero_grad()
        tower.zero_grad()
        loss.backward()
        tables.step()
        tower.step()
    print(f"loss {loss:.3f}")
    return model


if __name__ == "__main__":
    main()
