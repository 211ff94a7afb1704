"""Which films to show a user: a tower for each side, which meet in a dot product, each above a table of its own.

    plesio run examples/two_tower.py --strategy async_sgd --workers 4
    python examples/two_tower.py

The data are those of dlrm.py: MovieLens-100k or, without it, a synthetic stream. A film's tower knows nothing of the user, so
one matrix product ranks all films.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader

import plesio as ps
from dlrm import REAL, TEST, TRAIN, auc

DIM, WIDTH, BATCH = 16, 32, 256
USER, FILM = ((0, 2, 3, 4, 5), (1, 6, 7)) if REAL else ((0, 1, 2, 3), (4, 5, 6, 7))
"""Fields of each side."""


class Tower(nn.Module):
    """The rows of some fields of an example, and a network over them; `admit`: when an id gets a row."""

    def __init__(self, fields: tuple[int, ...], admit: ps.Seen | None = None) -> None:
        super().__init__()
        self.fields = fields
        self.ids = ps.Table(DIM, ps.RowAdagrad(lr=0.05), admit=admit)
        self.top = nn.Sequential(nn.Linear(len(fields) * DIM, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.top(self.ids(ids[:, self.fields]).flatten(1))
        return found


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.film = Tower(USER), Tower(FILM, admit=ps.Seen(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (self.user(ids) * self.film(ids)).sum(1)


def train(worker: ps.Worker) -> None:
    """Once through the stream. The rows of the next batch travel while one is computed."""
    net = TwoTower()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    model, optimizer, loader = worker.prepare(net, optimizer, DataLoader(TRAIN, batch_size=BATCH))
    towers = net.user, net.film
    for ids, liked in worker.ahead(loader, lambda batch: {one.ids: batch[0][:, one.fields] for one in towers}):
        with worker.step():
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(model(ids), liked)
            loss.backward()
            optimizer.step()
            worker.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    """On the last tenth of the stream."""
    ids, liked = TEST
    return {"auc": auc(model(ids), liked)}


if __name__ == "__main__":
    run = ps.run(train, ps.async_sgd(), workers=4, servers=2, evaluate=evaluate)
    sizes = ", ".join(f"{name}: {one.rows:,} rows" for name, one in run.tables.items())
    print(f"AUC {run.history[-1].metrics['auc']:.4f}; {sizes}")
    net = TwoTower()
    net.load_state_dict(run.state_dict)
    net.user.ids, net.film.ids = run.tables["user.ids"], run.tables["film.ids"]
    films = TEST[0][:, list(FILM)].unique(dim=0)
    everyone = torch.zeros(len(films), TEST[0].shape[1], dtype=torch.int64)
    everyone[:, list(FILM)] = films
    with torch.no_grad():
        scores = net.user(TEST[0][:1]) @ net.film(everyone).T
    print(f"the best of {len(films):,} films for one user: {scores[0].topk(3).indices.tolist()}")
